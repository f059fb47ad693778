//! The judgement: which facts are problems, and how to repair them. Pure.
//!
//! Each problem has one verdict: an image that needs a broken layer is named in the verdict of the layer, and has no
//! verdict of its own.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use layer::Digest;

use super::{
    super::{image_record::ImageRecord, layout::Version, lease_record::Lease},
    facts::{Directory, Facts, Files, LayerFacts, Read, RecordFile},
    report::{FindingKind as Kind, FsckOptions},
};
use crate::{lease::LeaseOwner, reference::Reference};

/// One problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) kind: Kind,
    pub(super) path: PathBuf,
    pub(super) problem: String,
    pub(super) images: Vec<Reference>,
    pub(super) held_by: Vec<LeaseOwner>,
    pub(super) repair: Repair,
    /// Records of images to remove with it, so that no process takes the images for complete.
    pub(super) forget: Vec<PathBuf>,
}

/// How to repair a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repair {
    WriteVersion,
    MakeDirectory,
    CloseDirectory,
    /// Moves a directory to the trash.
    Discard,
    /// Removes a file.
    Remove,
    /// The operator has to do this.
    Manual(&'static str),
}

/// All problems. `owners`: see [`FsckOptions::owners`].
pub(super) fn judge(facts: &Facts, owners: Option<&BTreeSet<LeaseOwner>>) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    match &facts.version {
        Version::Current | Version::Earlier => {}
        Version::Missing => {
            verdicts.push(verdict(Kind::VersionMissing, "VERSION", "is missing", Repair::WriteVersion));
        }
        Version::Other(found) => {
            let problem = format!("says {found:?}, which this version does not know; nothing else was looked at");
            let repair = Repair::Manual("use the version that wrote it, or move the store away");
            return vec![verdict(Kind::VersionOther, "VERSION", problem, repair)];
        }
    }
    verdicts.extend(facts.directories.iter().filter_map(|(path, state)| directory(path, *state, facts.owner)));
    let judge = Judge::new(facts, owners);
    verdicts.extend(facts.layers.iter().filter_map(|layer| judge.layer(layer)));
    verdicts.extend(facts.documents.iter().filter(|(.., intact)| !intact).map(|(path, digest, _)| {
        judge.removable(Kind::DocumentCorrupt, path, "does not hash to its name".into(), digest, Repair::Remove)
    }));
    verdicts.extend(facts.images.iter().filter_map(|image| judge.image(image)));
    verdicts.extend(facts.leases.iter().filter_map(|lease| judge.lease(lease)));
    verdicts.extend(facts.implied.iter().filter_map(|(path, key, files)| judge.implied(path, key, *files)));
    let mut leftovers = |kind, paths: &[PathBuf], problem: &str, repair| {
        verdicts.extend(paths.iter().map(|path| verdict(kind, path, problem, repair)));
    };
    let abandoned = "belongs to a process that is gone";
    leftovers(Kind::StagingAbandoned, &facts.abandoned_staging, abandoned, Repair::Discard);
    leftovers(Kind::TrashLeft, &facts.trash, "was removed and not deleted", Repair::Discard);
    leftovers(Kind::TemporaryLeft, &facts.temporaries, "was left by an interrupted write", Repair::Remove);
    let look = Repair::Manual("look at it, and move it out of the store");
    leftovers(Kind::Foreign, &facts.foreign, "does not belong to the store", look);
    verdicts
}

fn verdict(kind: Kind, path: impl Into<PathBuf>, problem: impl Into<String>, repair: Repair) -> Verdict {
    let (path, problem) = (path.into(), problem.into());
    Verdict { kind, path, problem, images: Vec::new(), held_by: Vec::new(), repair, forget: Vec::new() }
}

fn directory(path: &PathBuf, state: Directory, own: u32) -> Option<Verdict> {
    match state {
        Directory::Missing => Some(verdict(Kind::DirectoryMissing, path, "is missing", Repair::MakeDirectory)),
        Directory::Replaced => {
            let repair = Repair::Manual("put the directory back, or move away what stands in its place");
            Some(verdict(Kind::DirectoryReplaced, path, "is not a directory", repair))
        }
        Directory::Present { mode, owner } if owner != own => {
            let problem = format!("belongs to user {owner} (mode {mode:04o})");
            Some(verdict(Kind::DirectoryOpen, path, problem, Repair::CloseDirectory))
        }
        Directory::Present { mode, .. } if mode & 0o077 != 0 => {
            let problem =
                format!("has mode {mode:04o}: images hold set-user-id programs, so only root may look inside");
            Some(verdict(Kind::DirectoryOpen, path, problem, Repair::CloseDirectory))
        }
        Directory::Present { .. } => None,
    }
}

/// The facts with indexes over them.
struct Judge<'a> {
    facts: &'a Facts,
    /// Readable records in files of the right name.
    images: Vec<(&'a PathBuf, &'a ImageRecord)>,
    /// Readable leases with an existing owner.
    leases: Vec<&'a Lease>,
    without_owner: BTreeSet<&'a PathBuf>,
    /// Layers on disk, also those whose data is coming.
    layers: BTreeSet<&'a Digest>,
    implied: BTreeSet<&'a Digest>,
    documents: BTreeMap<&'a str, BTreeSet<&'a Digest>>,
}

impl<'a> Judge<'a> {
    fn new(facts: &'a Facts, owners: Option<&BTreeSet<LeaseOwner>>) -> Self {
        let without_owner = |found: &RecordFile<Lease>| match (&found.record, owners) {
            _ if facts.abandoned_leases.contains(&found.path) => true,
            // An unfinished pull may take any time.
            (Read::Is(lease), Some(owners)) => {
                lease.ready
                    && !owners.contains(&lease.owner.principal())
                    && found.age.as_secs() >= FsckOptions::GRACE_SECONDS
            }
            _ => false,
        };
        let (without_owner, held): (Vec<_>, Vec<_>) = facts.leases.iter().partition(|found| without_owner(found));
        let mut documents: BTreeMap<&str, BTreeSet<&Digest>> = BTreeMap::new();
        for (path, digest, _) in &facts.documents {
            let directory = path.parent().and_then(|directory| directory.to_str()).unwrap_or_default();
            documents.entry(directory).or_default().insert(digest);
        }
        Self {
            facts,
            images: facts.images.iter().filter(|found| found.in_place).filter_map(readable).collect(),
            leases: held.into_iter().filter_map(readable).map(|(_, lease)| lease).collect(),
            without_owner: without_owner.into_iter().map(|found| &found.path).collect(),
            layers: facts.layers.iter().map(|layer| &layer.diff_id).chain(&facts.incomplete).collect(),
            implied: facts.implied.iter().map(|(_, key, _)| key).collect(),
            documents,
        }
    }

    fn holding(&self, digest: &Digest) -> Vec<LeaseOwner> {
        let holds = |lease: &&&Lease| lease.layers.contains(digest) || lease.implied.contains(digest);
        self.leases.iter().filter(holds).map(|lease| lease.owner.clone()).collect()
    }

    /// A verdict on data that can be fetched again: it is removed unless a lease holds it.
    fn removable(&self, kind: Kind, path: &PathBuf, problem: String, digest: &Digest, repair: Repair) -> Verdict {
        let needs = |image: &ImageRecord| {
            let layers = image.layers.iter().map(|layer| &layer.diff_id);
            [&image.manifest, &image.config].into_iter().chain(layers).any(|needed| needed == digest)
        };
        let (forget, images) = self
            .images
            .iter()
            .filter(|(_, image)| needs(image))
            .map(|(path, image)| ((*path).clone(), image.reference.clone()))
            .unzip();
        let held_by = self.holding(digest);
        if held_by.is_empty() {
            return Verdict { images, forget, ..verdict(kind, path, problem, repair) };
        }
        let repair = Repair::Manual("it is in use: end its tasks, then check again with --repair");
        Verdict { images, held_by, ..verdict(kind, path, problem, repair) }
    }

    fn layer(&self, layer: &LayerFacts) -> Option<Verdict> {
        let (kind, problem) = match (&layer.record, &layer.files) {
            (Read::Absent, _) => (Kind::LayerUnrecorded, "has no record".to_owned()),
            (Read::Unreadable(error), _) => {
                (Kind::LayerRecordUnreadable, format!("has a record that cannot be read: {error}"))
            }
            (Read::Is(meta), _) if meta.diff_id != layer.diff_id => {
                (Kind::LayerRecordOfAnother, format!("has the record of {}", meta.diff_id))
            }
            (Read::Is(meta), _) if meta.suspect => {
                (Kind::LayerTorn, "is damaged on disk: a sync failed, or a block changed (the log has it)".to_owned())
            }
            (Read::Is(meta), _) if !meta.is_intact(&self.facts.boot_id) => {
                (Kind::LayerTorn, "was not synced before the machine went down".to_owned())
            }
            (_, Files::Absent) => (Kind::LayerEmptied, "has no files".to_owned()),
            (_, Files::Changed(how)) => (Kind::LayerChanged, how.clone()),
            (_, Files::AsUnpacked | Files::NotCompared) => return None,
        };
        Some(self.removable(kind, &layer.path, problem, &layer.diff_id, Repair::Discard))
    }

    fn has(&self, directory: &str, digest: &Digest) -> bool {
        self.documents.get(directory).is_some_and(|documents| documents.contains(digest))
    }

    fn image(&self, found: &RecordFile<ImageRecord>) -> Option<Verdict> {
        let image = match &found.record {
            Read::Is(image) if found.in_place => image,
            Read::Is(image) => {
                let problem = format!("is the record of {}, which belongs elsewhere", image.reference);
                return Some(verdict(Kind::ImageRecordUnreadable, &found.path, problem, Repair::Remove));
            }
            Read::Unreadable(error) => {
                let problem = format!("cannot be read: {error}");
                return Some(verdict(Kind::ImageRecordUnreadable, &found.path, problem, Repair::Remove));
            }
            Read::Absent => return None,
        };
        let absent = image.layers.iter().filter(|layer| !self.layers.contains(&layer.diff_id));
        let mut missing: Vec<String> = absent.map(|layer| format!("layer {}", layer.diff_id)).collect();
        let documents = image.documents().into_iter().filter(|(directory, _, digest)| !self.has(directory, digest));
        missing.extend(documents.map(|(_, kind, digest)| format!("{kind} {digest}")));
        if missing.is_empty() {
            return None;
        }
        missing.dedup();
        let problem = format!("needs missing data: {}", missing.join(", "));
        let images = vec![image.reference.clone()];
        Some(Verdict { images, ..verdict(Kind::ImageIncomplete, &found.path, problem, Repair::Remove) })
    }

    fn lease(&self, found: &RecordFile<Lease>) -> Option<Verdict> {
        let lease = match &found.record {
            Read::Is(lease) => lease,
            Read::Unreadable(error) => {
                let problem = format!("cannot be read, so it protects no layer: {error}");
                return Some(verdict(Kind::LeaseUnreadable, &found.path, problem, Repair::Remove));
            }
            Read::Absent => return None,
        };
        let named = |kind, problem: String, repair| {
            let (images, held_by) = (vec![lease.reference.clone()], vec![lease.owner.clone()]);
            Some(Verdict { images, held_by, ..verdict(kind, &found.path, problem, repair) })
        };
        if self.without_owner.contains(&found.path) {
            let ended = if self.facts.abandoned_leases.contains(&found.path) { "has ended" } else { "does not exist" };
            let problem = format!("belongs to {:?}, which {ended}", lease.owner.to_string());
            return named(Kind::LeaseWithoutOwner, problem, Repair::Remove);
        }
        if !found.in_place {
            let problem = format!("is the lease of {:?}, which belongs elsewhere", lease.owner.to_string());
            return named(Kind::LeaseUnreadable, problem, Repair::Manual("end its task, then remove the file"));
        }
        let layers = lease.layers.iter().filter(|layer| !self.layers.contains(layer));
        let implied = lease.implied.iter().filter(|key| !self.implied.contains(key));
        let missing: Vec<&str> = layers.chain(implied).map(Digest::as_str).collect();
        // An unfinished pull holds layers that it has not fetched yet.
        if missing.is_empty() || !lease.ready {
            return None;
        }
        let problem = format!("holds missing layers: {}", missing.join(", "));
        named(Kind::LeaseDangling, problem, Repair::Manual("pull the image again, or end the task"))
    }

    fn implied(&self, path: &PathBuf, key: &Digest, files: bool) -> Option<Verdict> {
        let held_by = self.holding(key);
        if held_by.is_empty() {
            return Some(verdict(Kind::ImpliedUnused, path, "is not in use", Repair::Discard));
        }
        (!files).then(|| self.removable(Kind::ImpliedEmptied, path, "has no files".into(), key, Repair::Discard))
    }
}

fn readable<T>(found: &RecordFile<T>) -> Option<(&PathBuf, &T)> {
    match &found.record {
        Read::Is(record) => Some((&found.path, record)),
        Read::Absent | Read::Unreadable(_) => None,
    }
}
