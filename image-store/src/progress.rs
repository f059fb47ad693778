//! The progress events of a pull.
//!
//! Events are advisory. They may be dropped, no event is waited for, and no part of a pull depends on one.

use std::{
    fmt,
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
    /// The pull waits. Until the next event, this is the reason.
    Waiting(
        /// The reason.
        Wait,
    ),
    /// The native form of the image was refused. The pull goes on with the original.
    NativeRefused {
        /// What was refused, and why.
        problem: String,
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
    /// Layers are used before they are complete: their data comes while a container runs.
    Incomplete {
        /// Their number.
        layers: usize,
        /// Their bytes.
        bytes: u64,
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
    /// Bytes of one layer arrived; at most a few times a second for each layer.
    LayerAdvanced {
        /// The digest of the unpacked blob.
        layer: Digest,
        /// Compressed bytes received so far.
        bytes_done: u64,
        /// Compressed bytes in total.
        bytes_total: u64,
    },
    /// A layer is ready.
    LayerDone {
        /// The digest of the unpacked blob.
        layer: Digest,
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

/// Why a pull waits. Its text completes "waiting for …".
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wait {
    /// A file or a helper is asked for credentials.
    Credentials {
        /// The registry that the credentials are for.
        registry: String,
    },
    /// A registry or mirror has not answered yet.
    Answer {
        /// The host.
        host: String,
        /// The requested content.
        what: String,
    },
    /// A request failed and is repeated.
    Retry {
        /// The failure.
        problem: String,
        /// The number of the failed attempt.
        attempt: u32,
        /// The number of attempts after which the pull fails.
        attempts: u32,
    },
    /// Another pull of this or of another process makes a layer.
    OtherPull {
        /// The layer's diff id.
        layer: Digest,
    },
}

impl Wait {
    /// For the registry of an image.
    pub(crate) fn registry(reference: &Reference) -> Self {
        Self::Answer { host: reference.domain().to_owned(), what: reference.to_string() }
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Credentials { registry } => write!(f, "credentials for {registry}"),
            Self::Answer { host, what } => write!(f, "an answer of {host}: {what}"),
            Self::Retry { problem, attempt, attempts } => {
                write!(f, "the next attempt; {attempt} of {attempts} failed: {problem}")
            }
            Self::OtherPull { layer } => write!(f, "another pull of layer {layer}"),
        }
    }
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

    fn add_bytes(&self, bytes: u64) {
        self.bytes_done.fetch_add(bytes, Ordering::Relaxed);
        if is_due(&self.last) {
            self.report();
        }
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

/// Whether the last report is long enough ago. Then this is the next one.
fn is_due(last: &Mutex<Instant>) -> bool {
    let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
    let due = last.elapsed() >= INTERVAL;
    if due {
        *last = Instant::now();
    }
    due
}

/// Counts the bytes of one layer, as a part of its pull.
pub(crate) struct LayerMeter {
    pull: Arc<Meter>,
    layer: Digest,
    bytes_total: u64,
    bytes_done: AtomicU64,
    last: Mutex<Instant>,
}

impl LayerMeter {
    pub(crate) fn new(pull: Arc<Meter>, layer: Digest, bytes_total: u64) -> Self {
        let meter = Self { pull, layer, bytes_total, bytes_done: AtomicU64::new(0), last: Mutex::new(Instant::now()) };
        meter.report();
        meter
    }

    /// Reports that another pull may be making the layer.
    pub(crate) fn waits_for_another_pull(&self) {
        self.pull.progress.report(PullEvent::Waiting(Wait::OtherPull { layer: self.layer.clone() }));
    }

    pub(crate) fn add_bytes(&self, bytes: u64) {
        self.bytes_done.fetch_add(bytes, Ordering::Relaxed);
        if is_due(&self.last) {
            self.report();
        }
        self.pull.add_bytes(bytes);
    }

    /// Adds the bytes that did not have to be transferred.
    pub(crate) fn add_missing(&self) {
        let missing = self.bytes_total.saturating_sub(self.bytes_done.load(Ordering::Relaxed));
        self.add_bytes(missing);
    }

    /// Takes back what was counted: the layer is fetched from its beginning.
    pub(crate) fn restart(&self) {
        let counted = self.bytes_done.swap(0, Ordering::Relaxed);
        self.pull.bytes_done.fetch_sub(counted, Ordering::Relaxed);
    }

    pub(crate) fn done(&self) {
        self.pull.layers_done.fetch_add(1, Ordering::Relaxed);
        self.pull.progress.report(PullEvent::LayerDone { layer: self.layer.clone() });
        self.pull.report();
    }

    fn report(&self) {
        self.pull.progress.report(PullEvent::LayerAdvanced {
            layer: self.layer.clone(),
            bytes_done: self.bytes_done.load(Ordering::Relaxed),
            bytes_total: self.bytes_total,
        });
    }
}
