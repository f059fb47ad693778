//! The observation of one pull: how long it took, and how it ended.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use image_store::{Progress, PullError, PullEvent, StoreError};

use super::Recorder;

/// The bytes of a pull that has not ended.
const PENDING: u64 = u64::MAX;
/// The bytes of a pull that fetched nothing.
const CACHED: u64 = u64::MAX - 1;

/// Passes the events of a pull on, and learns from them whether the image was on the node.
pub struct ObservedPull<P> {
    inner: P,
    began: Instant,
    bytes: AtomicU64,
}

impl<P: Progress> ObservedPull<P> {
    /// A pull that begins now.
    pub fn new(inner: P) -> Arc<Self> {
        Arc::new(Self { inner, began: Instant::now(), bytes: AtomicU64::new(PENDING) })
    }

    /// The receiver of the events.
    pub fn inner(&self) -> &P {
        &self.inner
    }

    /// The time since the beginning.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// The fetched bytes; `None` if nothing had to be fetched, or if the pull has not ended well.
    pub fn fetched(&self) -> Option<u64> {
        Some(self.bytes.load(Ordering::Relaxed)).filter(|bytes| *bytes < CACHED)
    }

    /// Whether the image was on the node. False until the pull has ended well.
    pub fn is_cached(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) == CACHED
    }

    /// Records the end of the pull.
    pub fn record<T>(&self, recorder: Option<&Recorder>, registry: &str, result: &Result<T, PullError>) {
        if let Some(recorder) = recorder {
            recorder.pull(registry, self.outcome(result), self.began.elapsed());
        }
    }

    /// The label value of the end of the pull.
    pub fn outcome<T>(&self, result: &Result<T, PullError>) -> &'static str {
        match result {
            Ok(_) if self.fetched().is_some() => "pulled",
            Ok(_) => "cached",
            Err(error) => failure(error),
        }
    }
}

impl<P: Progress> Progress for ObservedPull<P> {
    fn report(&self, event: PullEvent) {
        if let PullEvent::Done { bytes, cached, .. } = &event {
            self.bytes.store(if *cached { CACHED } else { (*bytes).min(CACHED - 1) }, Ordering::Relaxed);
        }
        self.inner.report(event);
    }
}

/// The label value of a failure.
fn failure(error: &PullError) -> &'static str {
    match error {
        PullError::Cancelled => "cancelled",
        PullError::Network { .. } => "network",
        PullError::Timeout { .. } | PullError::IdleTimeout { .. } => "timeout",
        PullError::Status { .. } => "status",
        PullError::NotFound { .. } | PullError::NoPlatform { .. } => "not_found",
        PullError::Denied { .. } | PullError::Access { .. } | PullError::Credentials { .. } => "denied",
        PullError::DiskFull { .. } => "disk_full",
        PullError::Store(StoreError::Configuration { .. }) => "configuration",
        PullError::Store(_) => "store",
        _ => "invalid",
    }
}
