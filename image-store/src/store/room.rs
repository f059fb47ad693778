//! How much room the store's file system has, and what is said when it is not enough.

use std::sync::Arc;

use super::{
    Inner, LayerRecord,
    layout::Layout,
    retention::{Disk, DiskUse, Wish},
    sweep,
};
use crate::{
    error::{PullError, StoreError},
    pull::blocking,
};

impl Inner {
    /// Refuses to start what cannot fit.
    pub(crate) fn check_space(&self, needed: u64) -> Result<(), PullError> {
        check(&self.layout, needed, self.limits.free_bytes)
    }

    /// Removes images that nobody uses for the sake of a pull that failed for want of space, if that is allowed. Says whether
    /// trying again may help.
    pub(crate) async fn makes_room(self: &Arc<Self>, failure: &PullError) -> bool {
        let (PullError::DiskFull { missing, .. }, Some(policy)) = (failure, self.retention) else { return false };
        let (inner, wish) = (Arc::clone(self), missing.map_or(Wish::All, Wish::Bytes));
        let removed = blocking(move || inner.retain(&policy, wish)).await;
        match removed {
            Ok(report) => {
                for image in &report.removed {
                    tracing::info!(image = %image.reference, bytes = image.bytes, "image removed: a pull has no room");
                }
                report.layers > 0
            }
            Err(error) => {
                tracing::warn!(%error, "no room made for a pull");
                false
            }
        }
    }

    /// After a pull that failed for want of space: takes away what only it would have needed, and tells what is known.
    pub(crate) async fn out_of_space(self: &Arc<Self>, failure: PullError, layers: &[LayerRecord]) -> PullError {
        if !matches!(failure, PullError::DiskFull { .. }) {
            return failure;
        }
        let (inner, unwanted) =
            (Arc::clone(self), layers.iter().map(|layer| layer.diff_id.clone()).collect::<Vec<_>>());
        if let Err(error) = blocking(move || sweep::give_back(&inner.layout, &unwanted)).await {
            tracing::warn!(%error, "finished layers of a pull that had no room stay for now");
        }
        explain(&self.layout, failure, layers.iter().fold(0, |sum, layer| sum.saturating_add(layer.size)))
    }
}

/// How full the store's file system is.
pub(super) fn disk(layout: &Layout) -> Result<Disk, StoreError> {
    let root = layout.root();
    let stat = rustix::fs::statvfs(root).map_err(StoreError::io("examining", root))?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    Ok(Disk {
        bytes: DiskUse { used: bytes(stat.f_blocks.saturating_sub(stat.f_bfree)), available: bytes(stat.f_bavail) },
        // All zero where inodes are made as they are needed.
        inodes: DiskUse { used: stat.f_files.saturating_sub(stat.f_ffree), available: stat.f_favail },
    })
}

/// Refuses what cannot fit: `needed` bytes and, after them, a `reserve` that stays free.
fn check(layout: &Layout, needed: u64, reserve: u64) -> Result<(), PullError> {
    let free = disk(layout)?.bytes.available;
    let wanted = needed.saturating_add(reserve);
    if free >= wanted {
        return Ok(());
    }
    let problem = format!(
        "{} has {free} bytes free; {needed} bytes of compressed layers are missing, more when unpacked, and {reserve} must stay free",
        layout.root().display()
    );
    Err(PullError::DiskFull { problem, missing: Some(wanted - free) })
}

/// Adds to a failure that came as a surprise what is known about the disk.
fn explain(layout: &Layout, failure: PullError, compressed: u64) -> PullError {
    let (PullError::DiskFull { problem, missing: None }, Ok(disk)) = (&failure, disk(layout)) else { return failure };
    let Disk { bytes, inodes } = disk;
    let inodes = match inodes.used + inodes.available {
        0 => String::new(),
        _ => format!(" and {} inodes", inodes.available),
    };
    let size =
        if compressed > 0 { format!("the image is {compressed} bytes when compressed; ") } else { String::new() };
    let (root, bytes) = (layout.root().display(), bytes.available);
    let problem = format!("{problem}; {size}without it {root} has {bytes} bytes{inodes} free");
    PullError::DiskFull { problem, missing: None }
}
