//! What a manifest says about a layer, and how its data is cut into chunks. Pure.

use std::ops::Range;

use layer::{Digest, Parts, ranges::merged};
use serde::{Deserialize, Serialize};

use crate::error::LazyError;

/// Bytes of a chunk: what is fetched and verified together.
pub const CHUNK: u64 = 128 << 10;

/// What a manifest says about a layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// The digest of the whole image.
    pub digest: Digest,
    /// Bytes of the whole image.
    pub size: u64,
    /// Bytes of the metadata.
    pub metadata: u64,
    /// The root of the hash tree, of SHA-256.
    pub hash_root: Digest,
    /// Chunks that come before the others, in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub first: Vec<Range<usize>>,
}

impl Description {
    pub(crate) fn parts(&self) -> Option<Parts> {
        Parts::of(self.metadata, self.size)
    }

    pub(crate) fn root(&self) -> Option<[u8; 32]> {
        let mut root = [0; 32];
        hex::decode_to_slice(self.hash_root.hex(), &mut root).ok()?;
        Some(root)
    }

    pub(crate) fn refused(&self, problem: impl Into<String>) -> LazyError {
        LazyError::Refused { digest: self.digest.to_string(), problem: problem.into() }
    }
}

pub(crate) fn chunk_count(parts: &Parts) -> usize {
    parts.data.div_ceil(CHUNK) as usize
}

pub(crate) fn range_of(parts: &Parts, chunk: usize) -> Range<u64> {
    let start = parts.metadata + chunk as u64 * CHUNK;
    start..(start + CHUNK).min(parts.file_system())
}

/// The bytes of some chunks, of which there is one at least.
pub(crate) fn range_of_all(parts: &Parts, chunks: &Range<usize>) -> Range<u64> {
    range_of(parts, chunks.start).start..range_of(parts, chunks.end - 1).end
}

/// The chunks of data that some ranges of an image touch, in the order of the image.
pub fn chunks_of_all(parts: &Parts, ranges: &[Range<u64>]) -> Vec<Range<usize>> {
    merged(ranges.iter().map(|range| chunks_of(parts, range)).collect(), 0)
}

pub(crate) fn chunks_of(parts: &Parts, range: &Range<u64>) -> Range<usize> {
    let within = |offset: u64| offset.clamp(parts.metadata, parts.file_system()) - parts.metadata;
    let (start, end) = (within(range.start), within(range.end));
    if start >= end { 0..0 } else { (start / CHUNK) as usize..end.div_ceil(CHUNK) as usize }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_the_file_is_chunks_of_its_data() {
        let parts = Parts::of(8192, 8192 + 3 * CHUNK + 4096 + 8192).unwrap();
        assert_eq!(parts.data, 3 * CHUNK + 4096);
        assert_eq!(chunk_count(&parts), 4);
        for (range, chunks) in [
            (0..8192, 0..0),
            (0..8193, 0..1),
            (8192..8192, 0..0),
            (8192 + CHUNK..8192 + CHUNK + 1, 1..2),
            (8192 + CHUNK - 1..8192 + CHUNK + 1, 0..2),
            (parts.file_system() - 1..parts.total(), 3..4),
            (parts.file_system()..parts.total(), 0..0),
            (0..u64::MAX, 0..4),
        ] {
            assert_eq!(chunks_of(&parts, &range), chunks, "{range:?}");
        }
        assert_eq!(range_of(&parts, 3), 8192 + 3 * CHUNK..parts.file_system());
    }
}
