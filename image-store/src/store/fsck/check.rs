//! A check from beginning to end.

use std::path::Path;

use super::{
    super::{layout::Layout, trash},
    facts, judge, repair,
    report::{FsckOptions, FsckReport},
};
use crate::error::StoreError;

/// Checks the store in `root`, which need not be open. With [`FsckOptions::repair`] it also repairs what it finds.
///
/// The check runs beside other processes that use the store. It repairs nothing while a file or a link has the name of
/// one of the store's directories.
///
/// # Errors
///
/// There is no store in `root`, or the store cannot be listed or locked.
pub fn fsck(root: &Path, options: &FsckOptions) -> Result<FsckReport, StoreError> {
    facts::expect_store(root)?;
    let layout = Layout::of(root)?;
    let trees = facts::examine_layers(&layout)?;
    let repairing;
    let report = {
        let _exclusive = layout.lock_exclusive()?;
        let facts = facts::collect(&layout, &trees)?;
        // A link in place of a directory leads to files outside the store.
        repairing = options.repair && !facts.directories.iter().any(|(_, state)| *state == facts::Directory::Replaced);
        let verdicts = judge::judge(&facts, options.owners.as_ref());
        let findings = verdicts.into_iter().map(|verdict| repair::settle(&layout, verdict, repairing)).collect();
        FsckReport {
            findings,
            images: facts.images.len(),
            layers: facts.layers.len(),
            layers_not_compared: facts.layers.iter().filter(|layer| layer.files == facts::Files::NotCompared).count(),
        }
    };
    if repairing {
        trash::empty(&layout)?;
    }
    Ok(report)
}
