//! Disk space for pulls: the check before a download, the removal of unused images, and the error text of a full disk.

use std::sync::Arc;

use super::puller::Puller;
use crate::{
    blocking::blocking,
    error::PullError,
    store::{LayerRecord, LocalStore, ReclaimTarget},
};

impl Puller {
    /// Fails if `needed` bytes do not fit on the disk.
    pub(super) fn check_space(&self, needed: u64) -> Result<(), PullError> {
        check(&self.local, needed, self.limits.free_bytes)
    }

    /// After a failure for lack of disk space, removes images that no lease holds, if the policy allows it. Returns
    /// whether another attempt may succeed.
    pub(super) async fn reclaim_space(self: &Arc<Self>, failure: &PullError) -> bool {
        let (PullError::DiskFull { missing, .. }, Some(policy)) = (failure, self.retention) else { return false };
        let (local, target) =
            (Arc::clone(&self.local), missing.map_or(ReclaimTarget::Everything, ReclaimTarget::Bytes));
        match blocking(move || local.retain(&policy, target)).await {
            Ok(report) => {
                for image in &report.removed {
                    let (image, bytes) = (&image.reference, image.bytes);
                    tracing::info!(%image, bytes, "image removed: a pull needs disk space");
                }
                report.layers > 0
            }
            Err(error) => {
                tracing::warn!(%error, "no disk space freed for a pull");
                false
            }
        }
    }

    /// After a failure for lack of disk space, removes the layers that only this pull needs, and adds the disk use to
    /// the error.
    pub(super) async fn out_of_space(self: &Arc<Self>, failure: PullError, layers: &[LayerRecord]) -> PullError {
        if !matches!(failure, PullError::DiskFull { .. }) {
            return failure;
        }
        let local = Arc::clone(&self.local);
        let unwanted: Vec<_> = layers.iter().map(|layer| layer.diff_id.clone()).collect();
        if let Err(error) = blocking(move || local.remove_unreferenced(&unwanted)).await {
            tracing::warn!(%error, "finished layers of a pull without disk space stay for now");
        }
        explain(&self.local, failure, layers.iter().fold(0, |sum, layer| sum.saturating_add(layer.size)))
    }
}

/// Fails if `needed` bytes and a `reserve` that stays free do not fit on the disk.
fn check(local: &LocalStore, needed: u64, reserve: u64) -> Result<(), PullError> {
    let free = local.disk_use()?.bytes.available;
    let wanted = needed.saturating_add(reserve);
    if free >= wanted {
        return Ok(());
    }
    let problem = format!(
        "{} has {free} bytes free; {needed} bytes of compressed layers are missing, more when unpacked, \
         and {reserve} must stay free",
        local.root().display()
    );
    Err(PullError::DiskFull { problem, missing: Some(wanted - free) })
}

/// Adds the disk use to an unexpected failure.
fn explain(local: &LocalStore, failure: PullError, compressed: u64) -> PullError {
    let (PullError::DiskFull { problem, missing: None }, Ok(disk)) = (&failure, local.disk_use()) else {
        return failure;
    };
    let inodes = match disk.inodes.used + disk.inodes.available {
        0 => String::new(),
        _ => format!(" and {} inodes", disk.inodes.available),
    };
    let size =
        if compressed > 0 { format!("the image is {compressed} bytes when compressed; ") } else { String::new() };
    let (root, bytes) = (local.root().display(), disk.bytes.available);
    let problem = format!("{problem}; {size}without it {root} has {bytes} bytes{inodes} free");
    PullError::DiskFull { problem, missing: None }
}
