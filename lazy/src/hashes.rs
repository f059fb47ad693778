//! The lowest level of a layer's hash tree, which has the hashes of the data.
//!
//! It has a hundredth of the layer's bytes, and a start needs few of them. So a layer may be mounted when only the
//! blocks of this level are here that prove its metadata and the chunks of its profile. A job fetches those that its
//! own chunks lack. The first background job fetches the rest.
//!
//! No record says which blocks are here: a block is here if it has the hash that the level above names. That level is
//! complete from the beginning.

use std::{
    fs::File,
    io, iter,
    ops::Range,
    os::unix::fs::FileExt,
    sync::atomic::{AtomicBool, Ordering},
};

use layer::{BLOCK, Parts, ranges::merged};

/// Bytes between two parts of the level that one request fetches with them. On a link of 1 Gbit/s they take half a
/// millisecond, as long as a request.
const GAP: u64 = 64 << 10;
/// There are at most about so many requests before a mount, however large the layer is.
const MOST: u64 = 32;

/// The lowest level of a layer's hash tree.
#[derive(Debug)]
pub(crate) struct Hashes {
    parts: Parts,
    level: Range<u64>,
    /// The blocks that are known to be here.
    here: Vec<AtomicBool>,
}

impl Hashes {
    /// The level of a layer that has its front.
    pub(crate) fn new(parts: Parts) -> Self {
        let (level, front) = (parts.lowest_hashes(), parts.front_hashes().end);
        let here = level.clone().step_by(BLOCK as usize).map(|block| AtomicBool::new(block < front)).collect();
        Self { parts, level, here }
    }

    /// The hashes of some blocks of the file system. `None`: not all are here. Accesses through `image`
    /// must not be announced.
    pub(crate) fn of(&self, image: &File, range: Range<u64>) -> io::Result<Option<Vec<u8>>> {
        for block in blocks(&self.parts.hash_blocks_of(range.clone())) {
            if !self.has(image, &block)? {
                return Ok(None);
            }
        }
        read(image, &self.parts.hashes_of(range)).map(Some)
    }

    /// What must be fetched to have the hashes of some blocks of the file system: from the first block of the level
    /// that is missing to the last one.
    pub(crate) fn missing(&self, image: &File, range: Range<u64>) -> io::Result<Option<Range<u64>>> {
        let mut missing: Option<Range<u64>> = None;
        for block in blocks(&self.parts.hash_blocks_of(range)) {
            if !self.has(image, &block)? {
                missing = Some(missing.map_or(block.start, |missing| missing.start)..block.end);
            }
        }
        Ok(missing)
    }

    /// From the first block that is not known to be here to the last one. The blocks are not looked at.
    pub(crate) fn unknown(&self) -> Option<Range<u64>> {
        let mut unknown = blocks(&self.level).filter(|block| !self.is_known(block));
        let first = unknown.next()?;
        Some(first.start..unknown.last().unwrap_or(first).end)
    }

    /// Writes those blocks of the level that are right. The others stay as they are. Returns how many of the bytes are
    /// whole blocks.
    pub(crate) fn accept(&self, image: &File, start: u64, bytes: &[u8]) -> io::Result<usize> {
        let whole = bytes.chunks_exact(BLOCK as usize);
        let (accepted, starts) = (bytes.len() - whole.remainder().len(), (start..).step_by(BLOCK as usize));
        for (bytes, start) in whole.zip(starts) {
            let block = start..start + BLOCK;
            if !self.is_known(&block) && self.is_right(image, &block, bytes)? {
                image.write_all_at(bytes, block.start)?;
                self.here[self.number(&block)].store(true, Ordering::Release);
            }
        }
        Ok(accepted)
    }

    fn number(&self, block: &Range<u64>) -> usize {
        ((block.start - self.level.start) / BLOCK) as usize
    }

    fn is_known(&self, block: &Range<u64>) -> bool {
        self.here[self.number(block)].load(Ordering::Acquire)
    }

    /// Whether a block is here. Another process may have written it.
    fn has(&self, image: &File, block: &Range<u64>) -> io::Result<bool> {
        if self.is_known(block) {
            return Ok(true);
        }
        let right = self.is_right(image, block, &read(image, block)?)?;
        if right {
            self.here[self.number(block)].store(true, Ordering::Release);
        }
        Ok(right)
    }

    fn is_right(&self, image: &File, block: &Range<u64>, bytes: &[u8]) -> io::Result<bool> {
        // A level of one block is part of the front.
        let Some(hashes) = self.parts.hashes_of_hash_blocks(block) else { return Ok(false) };
        Ok(layer::blocks_match(&read(image, &hashes)?, bytes))
    }
}

/// What is fetched of a hash tree before the mount, if these blocks of the file system come before the others: first
/// the beginning of the tree, then parts of the lowest level. Few parts, in the order of the image.
pub(crate) fn before_mount(parts: &Parts, first: impl Iterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let (front, level) = (parts.front_hashes(), parts.lowest_hashes());
    let gap = GAP.max((level.end - level.start) / MOST);
    let mut ranges = merged(iter::once(front).chain(first.map(|range| parts.hash_blocks_of(range))).collect(), gap);
    if let Some(last) = ranges.last_mut().filter(|last| level.end <= last.end + gap) {
        last.end = level.end;
    }
    ranges
}

fn blocks(range: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    range.clone().step_by(BLOCK as usize).map(|start| start..start + BLOCK)
}

fn read(image: &File, range: &Range<u64>) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    image.read_exact_at(&mut bytes, range.start)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A layer with so many blocks of metadata and of data.
    fn parts(metadata: u64, data: u64) -> Parts {
        let file_system = (metadata + data) * BLOCK;
        (file_system..)
            .step_by(BLOCK as usize)
            .find_map(|total| Parts::of(metadata * BLOCK, total).filter(|parts| parts.file_system() == file_system))
            .unwrap()
    }

    #[test]
    fn the_tree_of_a_small_layer_is_fetched_at_once() {
        let parts = parts(2, 8 << 8);
        let whole = parts.file_system()..parts.total();
        assert_eq!(before_mount(&parts, std::iter::empty()), Vec::from([whole]));
    }

    #[test]
    fn the_tree_of_a_large_layer_is_fetched_as_far_as_a_start_needs_it() {
        let parts = parts(2, 1 << 18);
        assert_eq!(before_mount(&parts, std::iter::empty()), [parts.front_hashes()]);
        let level = parts.lowest_hashes();
        let last = parts.file_system() - BLOCK..parts.file_system();
        let middle = 512 << 20..(512 << 20) + 3 * BLOCK;
        let half = level.start + (4 << 20);
        assert_eq!(
            before_mount(&parts, [last, middle].into_iter()),
            [parts.front_hashes(), half..half + BLOCK, level.end - BLOCK..level.end]
        );
    }

    proptest! {
        #[test]
        fn what_is_fetched_before_the_mount_proves_the_profile_with_few_requests(
            metadata in 1u64..300,
            data in 1u64..600_000,
            profile in prop::collection::vec((0u64..600_000, 1u64..500), 0..60),
        ) {
            let parts = parts(metadata, data);
            let first: Vec<_> = profile.iter().filter(|(start, _)| *start < data)
                .map(|(start, count)| (metadata + start) * BLOCK..(metadata + data.min(start + count)) * BLOCK)
                .collect();
            let ranges = before_mount(&parts, first.iter().cloned());
            prop_assert!(ranges.len() as u64 <= MOST + 1);
            prop_assert_eq!(ranges[0].start, parts.file_system());
            prop_assert!(ranges[0].end >= parts.front_hashes().end);
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
            prop_assert!(ranges.last().unwrap().end <= parts.total());
            for range in first {
                let blocks = parts.hash_blocks_of(range);
                prop_assert!(ranges.iter().any(|range| range.start <= blocks.start && blocks.end <= range.end));
            }
        }
    }
}
