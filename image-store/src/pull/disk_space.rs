//! Disk space for pulls: the check before a download, the removal of unused images, and the error text of a full disk.

use std::sync::Arc;

use super::puller::Puller;
use crate::{
    blocking::blocking,
    error::{PullError, StoreError},
    store::{DiskUse, LayerRecord, LocalStore, ReclaimTarget},
};

impl Puller {
    /// Fails if `needed` bytes do not fit on the disk.
    pub(super) fn check_space(&self, needed: u64) -> Result<(), PullError> {
        check(&self.local, needed, self.limits.free_bytes)
    }

    /// Why the file system has no room for any pull; `None` if it has. Then images that no lease holds may be removed
    /// at once, so the policy is asked. The text has no figures: it is the same for as long as the problem lasts.
    pub(crate) fn space_problem(&self) -> Result<Option<String>, StoreError> {
        let problem = no_room(self.local.disk_use()?, self.limits.free_bytes);
        if problem.is_some() {
            self.local.notify_changed();
        }
        Ok(problem.map(|problem| format!("{} {problem}", self.local.root().display())))
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

/// Why a file system with this use has no room for a pull that leaves `reserve` bytes free.
fn no_room(disk: DiskUse, reserve: u64) -> Option<String> {
    if disk.bytes.available < reserve {
        return Some(format!("has less than {} MiB free, which a pull must leave free", reserve >> 20));
    }
    // A file system that makes inodes on demand counts none.
    let counts_inodes = disk.inodes.used > 0 || disk.inodes.available > 0;
    (counts_inodes && disk.inodes.available == 0).then(|| "has no free inode".to_owned())
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

#[cfg(test)]
mod tests {
    use super::no_room;
    use crate::store::{DiskUse, Use};

    #[test]
    fn a_disk_without_room_is_told_by_its_bytes_and_inodes() {
        let disk = |bytes, used, inodes| DiskUse {
            bytes: Use { used: 1 << 30, available: bytes },
            inodes: Use { used, available: inodes },
        };
        for (disk, part) in [
            (disk(64 << 20, 5, 1), None),
            (disk((64 << 20) - 1, 5, 1), Some("less than 64 MiB")),
            (disk(64 << 20, 5, 0), Some("no free inode")),
            (disk(64 << 20, 0, 0), None),
        ] {
            let problem = no_room(disk, 64 << 20);
            assert_eq!(problem.is_some(), part.is_some(), "{problem:?}");
            assert!(problem.unwrap_or_default().contains(part.unwrap_or_default()));
        }
    }
}
