//! What a layer needs before it may be mounted, from one source: its metadata and the beginning of its hash tree.
//!
//! The first parts of its profile come at the same time. So the link has something to do while the metadata is checked.

use std::{
    iter,
    ops::{ControlFlow, Range},
    os::fd::OwnedFd,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Instant,
};

use layer::{CheckedImage, Limits, Parts};

use crate::{
    description::{Description, chunk_count, range_of_all},
    error::LazyError,
    hashes::before_mount,
    link::Measured,
    plan::{self, GAP, Plan},
    source::{Source, SourceError, joined, read_exact},
};

/// Parts of a profile that are asked for before the metadata is here …
const PARTS: usize = 12;
/// … and their chunks. They are in memory until then.
const CHUNKS: usize = 64;

/// The parts of a layer that must be here before the mount, and some that a start needs soon.
pub(crate) struct Front {
    pub(crate) metadata: Vec<u8>,
    /// The beginning of the hash tree.
    pub(crate) hash_tree: Vec<u8>,
    /// Further parts of it with their offsets, which are not checked.
    pub(crate) hashes: Vec<(u64, Vec<u8>)>,
    /// Chunks of the profile, which are not checked. The last ones of a part may be missing.
    pub(crate) first: Vec<(Range<usize>, Vec<u8>)>,
    pub(crate) checked: CheckedImage,
    /// Missing chunks between two parts of the profile that are fetched with them.
    pub(crate) gap: usize,
}

/// Fetches the front and checks it.
pub(crate) fn fetch(
    source: &dyn Source,
    description: &Description,
    parts: &Parts,
    (limits, directory): (&Limits, &OwnedFd),
) -> Result<Front, LazyError> {
    let failed = |error: SourceError| {
        let digest = description.digest.to_string();
        LazyError::Source { digest, problem: format!("{}: {error}", source.name()) }
    };
    let root = description.root().ok_or_else(|| description.refused("the root of its hash tree is not of SHA-256"))?;
    let count = chunk_count(parts);
    let first = plan::parts(&description.first, count, GAP);
    let ranges = before_mount(parts, first.iter().map(|chunks| range_of_all(parts, chunks)));
    let wanted = AtomicBool::new(true);
    let measured = Measured::new(source);
    thread::scope(|scope| {
        let source: &dyn Source = &measured;
        let read = |range: Range<u64>| read_exact(source, &range).map(|bytes| (range.start, bytes));
        let hashes: Vec<_> = ranges.into_iter().map(|range| scope.spawn(move || read(range))).collect();
        let first: Vec<_> = early(&description.first, count)
            .map(|chunks| {
                let (range, wanted) = (range_of_all(parts, &chunks), &wanted);
                scope.spawn(move || (chunks, read_while(source, range, wanted)))
            })
            .collect();
        let check = || {
            let (_, metadata) = read(0..parts.metadata).map_err(failed)?;
            let mut hashes = hashes.into_iter().map(joined).collect::<Result<Vec<_>, _>>().map_err(failed)?;
            let (_, hash_tree) = hashes.remove(0);
            let checked = layer::check_front(&metadata, &hash_tree, &root, limits, directory)
                .map_err(|error| LazyError::of_layer(&description.digest, error))?;
            if checked.parts != *parts {
                return Err(description.refused("its length is not that of its files"));
            }
            Ok((metadata, hash_tree, hashes, checked))
        };
        let checked = check();
        if checked.is_err() {
            wanted.store(false, Ordering::Relaxed);
        }
        let first = first.into_iter().map(joined).collect();
        let (metadata, hash_tree, hashes, checked) = checked?;
        let gap = measured.link().map_or(GAP, plan::gap);
        Ok(Front { metadata, hash_tree, hashes, first, checked, gap })
    })
}

/// The parts of a profile that are asked for before the metadata is here.
fn early(first: &[Range<usize>], count: usize) -> impl Iterator<Item = Range<usize>> {
    let (mut plan, now) = (Plan::new(&vec![false; count], first, GAP), Instant::now());
    let mut left = CHUNKS;
    let jobs = iter::from_fn(move || plan.first(now)).take(PARTS);
    jobs.map_while(move |chunks| {
        let end = chunks.end.min(chunks.start + left);
        left -= end - chunks.start;
        (chunks.start < end).then_some(chunks.start..end)
    })
}

/// The bytes of a range until the source fails or nothing more is wanted.
fn read_while(source: &dyn Source, range: Range<u64>, wanted: &AtomicBool) -> Vec<u8> {
    let length = (range.end - range.start) as usize;
    let mut bytes = Vec::with_capacity(length);
    let read = source.read(range, &mut |piece| {
        bytes.extend_from_slice(&piece[..piece.len().min(length - bytes.len())]);
        let more = bytes.len() < length && wanted.load(Ordering::Relaxed);
        if more { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    if let Err(error) = read {
        tracing::debug!(source = source.name(), %error, "a part of a profile is asked for again later");
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_requests_for_few_chunks_of_a_profile_are_sent_early() {
        let early = |first: &[Range<usize>]| early(first, 1000).collect::<Vec<_>>();
        assert_eq!(early(&[]), []);
        assert_eq!(early(&[50..52, 3..4]), [3..4, 50..52]);
        assert_eq!(early(&[900..2000, 0..30]), [0..30, 900..934]);
        assert_eq!(early(&[0..60, 100..101, 200..210]), [0..60, 100..101, 200..203]);
        assert_eq!(early(&[0..63, 100..101, 200..210]), [0..63, 100..101]);
        let scattered: Vec<_> = (0..40).map(|part| part * 20..part * 20 + 1).collect();
        assert_eq!(early(&scattered), scattered[..PARTS]);
    }
}
