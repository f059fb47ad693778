//! The sweep: removes what ended processes and earlier boots left behind.
//!
//! Everything is found under the exclusive store lock, and only renamed into the trash there.

use std::path::Path;

use super::{
    gc,
    image_record::images,
    layer_lock, layers,
    layout::{Layout, boot_id},
    lease_record::{leases, remove_abandoned},
    references::References,
    staging_lock, trash,
};
use crate::{error::StoreError, files};

/// What a sweep found and removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Staging directories of ended processes.
    pub staging: usize,
    /// Layers that another boot left unsynced, or that have no readable record.
    pub broken_layers: usize,
    /// Temporary files of interrupted writes.
    pub temporaries: usize,
    /// Manifests, configs and layers of implied directories that no image and no lease refers to.
    pub orphans: usize,
    /// Lock files of ended processes.
    pub locks: usize,
    /// Layers of this boot that the sweep synced.
    pub synced: usize,
}

/// Removes everything that no process can use, then syncs the layers of this boot.
pub(crate) fn sweep(layout: &Layout) -> Result<SweepReport, StoreError> {
    let mut report = SweepReport::default();
    {
        let _exclusive = layout.lock_exclusive()?;
        for path in staging_lock::abandoned(layout)? {
            trash::discard(layout, &path)?;
            report.staging += 1;
        }
        let boot_id = boot_id()?;
        remove_abandoned(layout)?;
        let leases = leases(layout)?;
        for (path, meta) in layers::all(layout)? {
            // A layer's record is replaced only under the exclusive lock, so a temporary file here was abandoned.
            report.temporaries += remove_temporaries(&path)?;
            let keep = meta.is_some_and(|meta| {
                let in_use = meta.suspect && leases.iter().any(|lease| lease.layers.contains(&meta.diff_id));
                meta.is_intact(&boot_id) || in_use
            });
            if !keep {
                trash::discard(layout, &path)?;
                report.broken_layers += 1;
            }
        }
        for directory in ["images", "leases", "configs", "manifests", ""] {
            report.temporaries += remove_temporaries(&layout.directory(directory))?;
        }
        let references = References::collect(layout, &images(layout)?, &leases);
        report.orphans = gc::collect_documents(layout, &references)?;
        report.locks = layer_lock::sweep(&layout.directory("locks"))?;
    }
    trash::empty(layout)?;
    report.synced = layers::sync(layout)?;
    Ok(report)
}

/// Removes temporary files. Writers hold the store lock, so every temporary file seen under the exclusive lock was
/// abandoned.
fn remove_temporaries(directory: &Path) -> Result<usize, StoreError> {
    let mut count = 0;
    for entry in std::fs::read_dir(directory).map_err(StoreError::io("listing", directory))? {
        let path = entry.map_err(StoreError::io("listing", directory))?.path();
        if files::is_temporary(&path) {
            failpoint::at("sweep-before-temporary");
            files::remove_file(&path)?;
            count += 1;
        }
    }
    Ok(count)
}
