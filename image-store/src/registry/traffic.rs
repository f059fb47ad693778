//! What this process asked of one host, and what it received.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the traffic with one host.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    requests: AtomicU64,
    retries: AtomicU64,
    bytes: AtomicU64,
}

/// The traffic with one registry or mirror since this process started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostTraffic {
    /// Requests, also those to other hosts that the host redirects to.
    pub requests: u64,
    /// Failed attempts after which another one followed.
    pub retries: u64,
    /// Received bytes of manifests, configs and layers.
    pub bytes: u64,
}

impl Traffic {
    pub(super) fn add_request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn add_retry(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn add_bytes(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn so_far(&self) -> HostTraffic {
        HostTraffic {
            requests: self.requests.load(Ordering::Relaxed),
            retries: self.retries.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
}
