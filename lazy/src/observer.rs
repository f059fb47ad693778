//! What the caller learns about layers that are served.

use std::{ops::Range, path::PathBuf};

use layer::Digest;

/// Something happened to a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LazyEvent {
    /// All of it is here, its digest is right, and reads are not announced any more. Its record and its map of chunks
    /// may be removed. It is not synced.
    Complete {
        /// The layer.
        digest: Digest,
        /// Its image.
        image: PathBuf,
        /// Ranges of the image's data in the order of their first reads, if these were noted.
        reads: Option<Vec<Range<u64>>>,
    },
    /// All of it is here, but it is not the layer that the manifest promised. It must not be used for other images.
    Refused {
        /// The layer.
        digest: Digest,
        /// Its image.
        image: PathBuf,
        /// The reason.
        problem: String,
    },
    /// Its file was removed. It is not served any more.
    Removed {
        /// The layer.
        digest: Digest,
        /// Its image.
        image: PathBuf,
    },
    /// A source delivered wrong bytes. They were not written.
    WrongChunk {
        /// The layer.
        digest: Digest,
        /// Where the chunk begins in the image.
        offset: u64,
        /// The source.
        source: String,
    },
    /// No source delivers. Reads of missing chunks wait.
    Stalled {
        /// The layer.
        digest: Digest,
        /// Chunks that are missing.
        missing: usize,
        /// The error of the last source.
        problem: String,
    },
    /// A read failed, because its data did not come or was wrong.
    ReadFailed {
        /// The layer.
        digest: Digest,
        /// Where the read begins in the image.
        offset: u64,
        /// The reason.
        problem: String,
    },
}

/// Learns what happens. Calls must not block.
pub trait Observer: Send + Sync {
    /// Something happened.
    fn report(&self, event: LazyEvent);
}
