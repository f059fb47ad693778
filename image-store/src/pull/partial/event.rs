//! What happens to the layers that are served, for the store's user.

use layer::Digest;

use crate::lease::LeaseOwner;

/// Something happened to a layer that is mounted before it is complete, or to one on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerEvent {
    /// The layer.
    pub layer: Digest,
    /// What happened.
    pub kind: LayerEventKind,
    /// The leases that have the layer.
    pub owners: Vec<LeaseOwner>,
}

/// What happened to a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LayerEventKind {
    /// All of it is here, and it is an ordinary layer now.
    Complete,
    /// All of it is here, but it is not the layer that the manifest promised.
    Refused {
        /// The reason.
        problem: String,
    },
    /// A source delivered wrong bytes. They were not used.
    WrongChunk {
        /// The source.
        source: String,
    },
    /// No source delivers. Reads of missing data wait.
    Stalled {
        /// Chunks that are missing.
        missing: usize,
        /// The last error.
        problem: String,
    },
    /// A read failed with `EIO`.
    ReadFailed {
        /// The reason.
        problem: String,
    },
    /// The kernel found a block of a complete layer that changed on disk. Reads of it fail with `EIO`.
    Damaged {
        /// Where the data of the block begins in the image.
        offset: u64,
    },
}
