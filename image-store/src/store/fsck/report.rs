//! The options and the result of a check.

use std::{collections::BTreeSet, path::PathBuf};

use serde::Serialize;

use crate::{lease::LeaseOwner, reference::Reference};

/// The options of a check.
#[derive(Debug, Clone, Default)]
pub struct FsckOptions {
    /// Repair what can be repaired.
    pub repair: bool,
    /// The owners of leases that exist, if the caller knows all of them. The lease of any other owner is left over once
    /// it is [`FsckOptions::GRACE_SECONDS`] old.
    pub owners: Option<BTreeSet<LeaseOwner>>,
}

impl FsckOptions {
    /// The lease of a task that is just starting exists before its container is visible.
    pub const GRACE_SECONDS: u64 = 600;
}

/// The result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct FsckReport {
    /// Every deviation from the format.
    pub findings: Vec<Finding>,
    /// Number of checked images.
    pub images: usize,
    /// Number of checked layers.
    pub layers: usize,
    /// Number of layers that have no summary to compare their files with: layers of an older build, and layers younger
    /// than a second.
    pub layers_not_compared: usize,
}

impl FsckReport {
    /// Whether there is no damage, or all damage was repaired.
    pub fn is_sound(&self) -> bool {
        let repaired = |finding: &Finding| matches!(finding.outcome, Outcome::Repaired(_));
        self.findings.iter().all(|finding| finding.severity != Severity::Damage || repaired(finding))
    }
}

/// One deviation from the format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Its kind.
    pub kind: FindingKind,
    /// Its severity.
    pub severity: Severity,
    /// The file or directory.
    pub path: PathBuf,
    /// The problem, as text.
    pub problem: String,
    /// The images that it belongs to.
    pub images: Vec<Reference>,
    /// Owners of the leases that hold it.
    pub held_by: Vec<LeaseOwner>,
    /// The repair that was made or is possible.
    pub outcome: Outcome,
}

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Data is lost, or wrong data would be used.
    Damage,
    /// Uses disk space and does no harm.
    Leftover,
    /// Does not belong to the store. A repair never touches it.
    Foreign,
}

/// The repair of a finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// This was done.
    #[serde(rename = "mended")]
    Repaired(&'static str),
    /// A check with [`FsckOptions::repair`] would do this.
    #[serde(rename = "mendable")]
    Repairable(&'static str),
    /// The operator has to do this.
    Manual(&'static str),
    /// The repair failed with this error.
    Failed(String),
}

/// The kinds of findings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum FindingKind {
    /// `VERSION` is missing.
    VersionMissing,
    /// `VERSION` names an unknown format. Nothing else was checked.
    VersionOther,
    /// A directory of the store is missing.
    DirectoryMissing,
    /// A file or a link has the name of a directory of the store.
    DirectoryReplaced,
    /// Other users than root may list a directory, or another user owns it.
    DirectoryOpen,
    /// A layer without a record.
    LayerUnrecorded,
    /// A layer whose record cannot be read.
    LayerRecordUnreadable,
    /// A layer with the record of another layer.
    LayerRecordOfAnother,
    /// A layer that was not synced before the machine went down.
    LayerTorn,
    /// A layer without files.
    LayerEmptied,
    /// A layer whose files are not the unpacked ones.
    LayerChanged,
    /// A manifest or config whose bytes do not hash to its name.
    DocumentCorrupt,
    /// The record of an image that cannot be read, or that has the file name of another image.
    ImageRecordUnreadable,
    /// An image that needs a missing layer or document.
    ImageIncomplete,
    /// A lease that cannot be read, or that has the file name of another lease.
    LeaseUnreadable,
    /// A lease of a missing layer.
    LeaseDangling,
    /// A lease without an existing owner.
    #[serde(rename = "lease-of-nobody")]
    LeaseWithoutOwner,
    /// A layer of implied directories without files.
    #[serde(rename = "fixup-emptied")]
    ImpliedEmptied,
    /// A layer of implied directories that no lease refers to.
    #[serde(rename = "fixup-unused")]
    ImpliedUnused,
    /// Staged layers of an ended process.
    #[serde(rename = "staging-of-the-dead")]
    StagingAbandoned,
    /// A removed directory that was not deleted.
    TrashLeft,
    /// A temporary file of an interrupted write.
    TemporaryLeft,
    /// A file or directory that the store did not write.
    Foreign,
}

impl FindingKind {
    /// The severity of this kind.
    pub fn severity(self) -> Severity {
        match self {
            Self::LeaseWithoutOwner
            | Self::ImpliedUnused
            | Self::StagingAbandoned
            | Self::TrashLeft
            | Self::TemporaryLeft => Severity::Leftover,
            Self::Foreign => Severity::Foreign,
            _ => Severity::Damage,
        }
    }
}
