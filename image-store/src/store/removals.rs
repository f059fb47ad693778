//! The number of images that this process removed by the retention policy.

use std::sync::atomic::{AtomicU64, Ordering};

use super::retention::{Pressure, RetentionReport};

/// Why an image was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemovalCause {
    /// No task had used it for the time of the policy.
    Unused,
    /// The file system had too few free bytes.
    Bytes,
    /// The file system had too few free inodes.
    Inodes,
    /// A pull needed disk space.
    Pull,
}

impl RemovalCause {
    /// All causes.
    pub const ALL: [Self; 4] = [Self::Unused, Self::Bytes, Self::Inodes, Self::Pull];

    fn of(pressure: Option<Pressure>) -> Self {
        match pressure {
            None => Self::Unused,
            Some(Pressure::Bytes(_)) => Self::Bytes,
            Some(Pressure::Inodes(_)) => Self::Inodes,
            Some(Pressure::Pull) => Self::Pull,
        }
    }
}

/// Removed images, and the unpacked bytes of the layers that only they needed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Removals {
    /// Images.
    pub images: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Counts removals by their cause.
#[derive(Debug, Default)]
pub(super) struct RemovalCounters([(AtomicU64, AtomicU64); RemovalCause::ALL.len()]);

impl RemovalCounters {
    /// Adds the images of a report.
    pub(super) fn add(&self, report: &RetentionReport) {
        for image in &report.removed {
            let (images, bytes) = &self.0[RemovalCause::of(image.pressure) as usize];
            images.fetch_add(1, Ordering::Relaxed);
            bytes.fetch_add(image.bytes, Ordering::Relaxed);
        }
    }

    /// The numbers so far.
    pub(super) fn so_far(&self) -> [(RemovalCause, Removals); RemovalCause::ALL.len()] {
        RemovalCause::ALL.map(|cause| {
            let (images, bytes) = &self.0[cause as usize];
            let images = images.load(Ordering::Relaxed);
            (cause, Removals { images, bytes: bytes.load(Ordering::Relaxed) })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{super::retention::Removed, *};

    #[test]
    fn removals_are_counted_by_their_cause() {
        let removed =
            |pressure, bytes| Removed { reference: "a:1".parse().unwrap(), unused: Duration::ZERO, pressure, bytes };
        let removed = vec![
            removed(None, 1),
            removed(None, 2),
            removed(Some(Pressure::Inodes(90)), 4),
            removed(Some(Pressure::Pull), 8),
        ];
        let counters = RemovalCounters::default();
        counters.add(&RetentionReport { removed, ..RetentionReport::default() });
        let found = counters.so_far().map(|(_, removals)| (removals.images, removals.bytes));
        assert_eq!(found, [(2, 3), (0, 0), (1, 4), (1, 8)]);
    }
}
