//! The memory of all layers that are being unpacked into images.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Counts the bytes that the layers being unpacked keep in memory together. Clones count together.
#[derive(Debug, Clone, Default)]
pub struct MemoryCounter(Arc<AtomicUsize>);

impl MemoryCounter {
    /// The bytes of all layers.
    pub(super) fn total(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// The bytes of one layer, given back when dropped.
pub(super) struct KeptMemory {
    bytes: usize,
    counter: MemoryCounter,
}

impl KeptMemory {
    /// No bytes yet.
    pub(super) fn new(counter: MemoryCounter) -> Self {
        Self { bytes: 0, counter }
    }

    pub(super) fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.counter.0.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The bytes of all layers.
    pub(super) fn total(&self) -> usize {
        self.counter.total()
    }
}

impl Drop for KeptMemory {
    fn drop(&mut self) {
        self.counter.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
