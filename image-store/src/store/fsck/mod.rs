//! Whether what is on disk is what the format says, and what can be done about it.
//!
//! Layers are compared with what they looked like before anything is locked, because that takes long and they never change. Then the
//! store's lock is taken alone for the moment that listing, judging and mending take. [`judge`] is pure: what is there in, what is
//! wrong out. Whatever can be fetched again is dropped, so that the next pull fetches it; what a lease holds is named and left
//! alone, and so is what the store did not write.

mod facts;
mod judge;
mod mend;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use serde::Serialize;

use super::{layout::Layout, sweep};
use crate::{error::StoreError, lease::LeaseOwner, reference::Reference};

/// How to check.
#[derive(Debug, Clone, Default)]
pub struct FsckOptions {
    /// Mend what can be mended.
    pub repair: bool,
    /// The owners of leases that exist, if the caller knows all of them. The lease of any other owner is left over once it is
    /// [`FsckOptions::GRACE_SECONDS`] old.
    pub owners: Option<BTreeSet<LeaseOwner>>,
}

impl FsckOptions {
    /// A task that starts has its lease before anybody can see its container.
    pub const GRACE_SECONDS: u64 = 600;
}

/// What a check found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct FsckReport {
    /// Everything that is not as it should be.
    pub findings: Vec<Finding>,
    /// Images that were looked at.
    pub images: usize,
    /// Layers that were looked at.
    pub layers: usize,
    /// Those of them whose files could not be compared with anything: they are of an older build, or not a second old.
    pub layers_not_compared: usize,
}

impl FsckReport {
    /// Whether there is no damage, or none any more.
    pub fn is_sound(&self) -> bool {
        let mended = |finding: &Finding| matches!(finding.outcome, Outcome::Mended(_));
        self.findings.iter().all(|finding| finding.severity != Severity::Damage || mended(finding))
    }
}

/// One thing that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What it is.
    pub kind: FindingKind,
    /// How bad it is.
    pub severity: Severity,
    /// Which file or directory.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: String,
    /// Images that it belongs to.
    pub images: Vec<Reference>,
    /// Owners of the leases that hold it.
    pub held_by: Vec<LeaseOwner>,
    /// What was done about it, or could be.
    pub outcome: Outcome,
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Something is lost, or would be used although it is wrong.
    Damage,
    /// Takes up room and does no harm.
    Leftover,
    /// Not the store's. Never touched.
    Foreign,
}

/// What became of a finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// This was done.
    Mended(&'static str),
    /// This would be done by a check that repairs.
    Mendable(&'static str),
    /// This is for the operator to do.
    Manual(&'static str),
    /// Mending it failed.
    Failed(String),
}

/// What can be wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum FindingKind {
    /// `VERSION` is not there.
    VersionMissing,
    /// `VERSION` names another format. Nothing else was looked at.
    VersionOther,
    /// A directory of the store is not there.
    DirectoryMissing,
    /// Something else stands where a directory of the store should be.
    DirectoryReplaced,
    /// Others than root may look into a directory, or it belongs to somebody else.
    DirectoryOpen,
    /// A layer without a record.
    LayerUnrecorded,
    /// A layer whose record cannot be read.
    LayerRecordUnreadable,
    /// A layer with the record of another one.
    LayerRecordOfAnother,
    /// A layer that was not synced before the machine went down.
    LayerTorn,
    /// A layer without files.
    LayerEmptied,
    /// A layer whose files are not what was unpacked.
    LayerChanged,
    /// A manifest or config whose bytes do not hash to its name.
    DocumentCorrupt,
    /// An image's record that cannot be read, or stands under another image's name.
    ImageRecordUnreadable,
    /// An image that needs something that is not here.
    ImageIncomplete,
    /// A lease that cannot be read, or stands under another lease's name.
    LeaseUnreadable,
    /// A lease of something that is not here.
    LeaseDangling,
    /// A lease whose holder does not exist.
    LeaseOfNobody,
    /// A fix-up without files.
    FixupEmptied,
    /// A fix-up that no lease names.
    FixupUnused,
    /// Half-made layers of a process that is gone.
    StagingOfTheDead,
    /// Something that was removed and not deleted.
    TrashLeft,
    /// A temporary file of an interrupted write.
    TemporaryLeft,
    /// Something that the store did not write.
    Foreign,
}

impl FindingKind {
    /// How bad it is.
    pub fn severity(self) -> Severity {
        match self {
            Self::LeaseOfNobody
            | Self::FixupUnused
            | Self::StagingOfTheDead
            | Self::TrashLeft
            | Self::TemporaryLeft => Severity::Leftover,
            Self::Foreign => Severity::Foreign,
            _ => Severity::Damage,
        }
    }
}

/// Checks the store in `root`, which need not be open; with [`FsckOptions::repair`] mends what it finds. Runs beside other processes that use
/// the store. Mends nothing while something else stands in place of one of its directories. Fails if there is no store, or none that can be listed and locked.
pub fn fsck(root: &Path, options: &FsckOptions) -> Result<FsckReport, StoreError> {
    facts::expect_store(root)?;
    let layout = Layout::of(root)?;
    let trees = facts::examine_layers(&layout)?;
    let mending;
    let report = {
        let _alone = layout.lock(true)?;
        let facts = facts::collect(&layout, &trees)?;
        // Behind a link in place of a directory lies what was never the store's.
        mending = options.repair && !facts.directories.iter().any(|(_, state)| *state == facts::Directory::Replaced);
        let verdicts = judge::judge(&facts, options.owners.as_ref());
        let findings = verdicts.into_iter().map(|verdict| mend::settle(&layout, verdict, mending)).collect();
        FsckReport {
            findings,
            images: facts.images.len(),
            layers: facts.layers.len(),
            layers_not_compared: facts.layers.iter().filter(|layer| layer.files == facts::Files::NotCompared).count(),
        }
    };
    if mending {
        sweep::empty_trash(&layout)?;
    }
    Ok(report)
}
