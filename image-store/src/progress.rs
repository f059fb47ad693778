//! The progress events of a pull.
//!
//! Events are advisory. They may be dropped, no event is waited for, and no part of a pull depends on one.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use layer::Digest;

use crate::reference::Reference;

/// Receives the events of one pull. Called from any thread; must not block.
pub trait Progress: Send + Sync {
    /// Receives one event.
    fn report(&self, event: PullEvent);
}

/// Ignores all events.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn report(&self, _event: PullEvent) {}
}

/// One event of a pull.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PullEvent {
    /// The pull starts.
    Started {
        /// The requested image.
        reference: Reference,
    },
    /// The manifest is known.
    Resolved {
        /// Its digest.
        digest: Digest,
        /// Compressed bytes that this pull needs and the store lacks.
        bytes_total: u64,
        /// Layers that this pull needs and the store lacks.
        layers: usize,
    },
    /// Bytes arrived; at most a few times a second.
    Advanced {
        /// Compressed bytes received so far.
        bytes_done: u64,
        /// Compressed bytes in total.
        bytes_total: u64,
        /// Finished layers.
        layers_done: usize,
        /// Layers in total.
        layers: usize,
    },
    /// The image is ready.
    Done {
        /// The digest of its manifest.
        digest: Digest,
        /// Compressed bytes that were fetched.
        bytes: u64,
        /// The duration of the pull.
        elapsed: Duration,
        /// Nothing had to be fetched.
        cached: bool,
    },
}

/// The least time between two [`PullEvent::Advanced`] for bytes.
const INTERVAL: Duration = Duration::from_millis(500);

/// Counts the bytes and layers of one pull, and reports them at a limited rate.
pub(crate) struct Meter {
    progress: Arc<dyn Progress>,
    bytes_total: u64,
    layers: usize,
    bytes_done: AtomicU64,
    layers_done: AtomicUsize,
    last: Mutex<Instant>,
}

impl Meter {
    pub(crate) fn new(progress: Arc<dyn Progress>, bytes_total: u64, layers: usize) -> Self {
        Self {
            progress,
            bytes_total,
            layers,
            bytes_done: AtomicU64::new(0),
            layers_done: AtomicUsize::new(0),
            last: Mutex::new(Instant::now()),
        }
    }

    pub(crate) fn add_bytes(&self, bytes: u64) {
        self.bytes_done.fetch_add(bytes, Ordering::Relaxed);
        let due = {
            let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            let due = last.elapsed() >= INTERVAL;
            if due {
                *last = Instant::now();
            }
            due
        };
        if due {
            self.report();
        }
    }

    pub(crate) fn layer_done(&self) {
        self.layers_done.fetch_add(1, Ordering::Relaxed);
        self.report();
    }

    pub(crate) fn bytes_done(&self) -> u64 {
        self.bytes_done.load(Ordering::Relaxed)
    }

    fn report(&self) {
        self.progress.report(PullEvent::Advanced {
            bytes_done: self.bytes_done(),
            bytes_total: self.bytes_total,
            layers_done: self.layers_done.load(Ordering::Relaxed),
            layers: self.layers,
        });
    }
}
