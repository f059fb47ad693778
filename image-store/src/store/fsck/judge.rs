//! What is wrong with what is there, and what should be done about it. Pure.
//!
//! One thing that is broken is one verdict: an image that needs a broken layer is named there and not once more.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use super::{
    super::{
        layout::Version,
        record::{ImageRecord, Lease},
    },
    FindingKind as Kind, FsckOptions,
    facts::{Directory, Facts, Files, Found, LayerFacts, Read},
};
use crate::{digest::Digest, lease::LeaseOwner, reference::Reference};

/// One thing that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) kind: Kind,
    pub(super) path: PathBuf,
    pub(super) problem: String,
    pub(super) images: Vec<Reference>,
    pub(super) held_by: Vec<LeaseOwner>,
    pub(super) mend: Mend,
    /// Records of images that go with it, so that nobody believes them complete.
    pub(super) forget: Vec<PathBuf>,
}

/// What can be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mend {
    WriteVersion,
    MakeDirectory,
    CloseDirectory,
    /// A directory: moved to the trash.
    Discard,
    /// A file.
    Remove,
    /// Nothing, by us. What the operator can do.
    Manual(&'static str),
}

/// Everything that is wrong. `owners`: see [`FsckOptions::owners`].
pub(super) fn judge(facts: &Facts, owners: Option<&BTreeSet<LeaseOwner>>) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    match &facts.version {
        Version::Ours | Version::Earlier => {}
        Version::Missing => {
            verdicts.push(verdict(Kind::VersionMissing, "VERSION", "is missing", Mend::WriteVersion));
        }
        Version::Other(found) => {
            let problem = format!("says {found:?}, which this version does not know; nothing else was looked at");
            let mend = Mend::Manual("use the version that wrote it, or move the store away");
            return vec![verdict(Kind::VersionOther, "VERSION", problem, mend)];
        }
    }
    verdicts.extend(facts.directories.iter().filter_map(|(path, state)| directory(path, *state, facts.owner)));
    let judge = Judge::new(facts, owners);
    verdicts.extend(facts.layers.iter().filter_map(|layer| judge.layer(layer)));
    verdicts.extend(facts.documents.iter().filter(|(.., intact)| !intact).map(|(path, digest, _)| {
        judge.droppable(Kind::DocumentCorrupt, path, "does not hash to its name".into(), digest, Mend::Remove)
    }));
    verdicts.extend(facts.images.iter().filter_map(|image| judge.image(image)));
    verdicts.extend(facts.leases.iter().filter_map(|lease| judge.lease(lease)));
    verdicts.extend(facts.fixups.iter().filter_map(|(path, key, files)| judge.fixup(path, key, *files)));
    let mut leftovers = |kind, paths: &[PathBuf], problem: &str, mend| {
        verdicts.extend(paths.iter().map(|path| verdict(kind, path, problem, mend)));
    };
    let dead = "belongs to a process that is gone";
    leftovers(Kind::StagingOfTheDead, &facts.dead_staging, dead, Mend::Discard);
    leftovers(Kind::TrashLeft, &facts.trash, "was removed and not deleted", Mend::Discard);
    leftovers(Kind::TemporaryLeft, &facts.temporaries, "was left by an interrupted write", Mend::Remove);
    let look = Mend::Manual("look at it, and move it out of the store");
    leftovers(Kind::Foreign, &facts.foreign, "is not the store's", look);
    verdicts
}

fn verdict(kind: Kind, path: impl Into<PathBuf>, problem: impl Into<String>, mend: Mend) -> Verdict {
    let (path, problem) = (path.into(), problem.into());
    Verdict { kind, path, problem, images: Vec::new(), held_by: Vec::new(), mend, forget: Vec::new() }
}

fn directory(path: &PathBuf, state: Directory, us: u32) -> Option<Verdict> {
    match state {
        Directory::Missing => Some(verdict(Kind::DirectoryMissing, path, "is missing", Mend::MakeDirectory)),
        Directory::Replaced => {
            let mend = Mend::Manual("put the directory back, or move away what stands in its place");
            Some(verdict(Kind::DirectoryReplaced, path, "is not a directory", mend))
        }
        Directory::There { mode, owner } if owner != us => {
            let problem = format!("belongs to user {owner} (mode {mode:04o})");
            Some(verdict(Kind::DirectoryOpen, path, problem, Mend::CloseDirectory))
        }
        Directory::There { mode, .. } if mode & 0o077 != 0 => {
            let problem =
                format!("has mode {mode:04o}: images hold set-user-id programs, so only root may look inside");
            Some(verdict(Kind::DirectoryOpen, path, problem, Mend::CloseDirectory))
        }
        Directory::There { .. } => None,
    }
}

/// Who needs what.
struct Judge<'a> {
    facts: &'a Facts,
    /// Readable records where they belong.
    images: Vec<(&'a PathBuf, &'a ImageRecord)>,
    /// Readable leases, without those of nobody.
    leases: Vec<&'a Lease>,
    nobodys: BTreeSet<&'a PathBuf>,
    layers: BTreeSet<&'a Digest>,
    fixups: BTreeSet<&'a Digest>,
    documents: BTreeMap<&'a str, BTreeSet<&'a Digest>>,
}

impl<'a> Judge<'a> {
    fn new(facts: &'a Facts, owners: Option<&BTreeSet<LeaseOwner>>) -> Self {
        let of_nobody = |found: &Found<Lease>| match (&found.record, owners) {
            // A pull may take as long as it likes.
            (Read::Is(lease), Some(owners)) => {
                lease.ready && !owners.contains(&lease.owner) && found.age.as_secs() >= FsckOptions::GRACE_SECONDS
            }
            _ => false,
        };
        let (nobodys, held): (Vec<_>, Vec<_>) = facts.leases.iter().partition(|found| of_nobody(found));
        let mut documents: BTreeMap<&str, BTreeSet<&Digest>> = BTreeMap::new();
        for (path, digest, _) in &facts.documents {
            let directory = path.parent().and_then(|directory| directory.to_str()).unwrap_or_default();
            documents.entry(directory).or_default().insert(digest);
        }
        Self {
            facts,
            images: facts.images.iter().filter(|found| found.in_place).filter_map(readable).collect(),
            leases: held.into_iter().filter_map(readable).map(|(_, lease)| lease).collect(),
            nobodys: nobodys.into_iter().map(|found| &found.path).collect(),
            layers: facts.layers.iter().map(|layer| &layer.diff_id).collect(),
            fixups: facts.fixups.iter().map(|(_, key, _)| key).collect(),
            documents,
        }
    }

    fn holding(&self, digest: &Digest) -> Vec<LeaseOwner> {
        let holds = |lease: &&&Lease| lease.layers.contains(digest) || lease.fixups.contains(digest);
        self.leases.iter().filter(holds).map(|lease| lease.owner.clone()).collect()
    }

    /// Something that can be fetched again, unless somebody uses it.
    fn droppable(&self, kind: Kind, path: &PathBuf, problem: String, digest: &Digest, mend: Mend) -> Verdict {
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
            return Verdict { images, forget, ..verdict(kind, path, problem, mend) };
        }
        let mend = Mend::Manual("it is in use: end its tasks, then check again with --repair");
        Verdict { images, held_by, ..verdict(kind, path, problem, mend) }
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
                (Kind::LayerTorn, "may not have reached the disk, by what the kernel said".to_owned())
            }
            (Read::Is(meta), _) if !meta.is_intact(&self.facts.boot_id) => {
                (Kind::LayerTorn, "was not synced before the machine went down".to_owned())
            }
            (_, Files::Absent) => (Kind::LayerEmptied, "has no files".to_owned()),
            (_, Files::Changed(how)) => (Kind::LayerChanged, how.clone()),
            (_, Files::AsUnpacked | Files::NotCompared) => return None,
        };
        Some(self.droppable(kind, &layer.path, problem, &layer.diff_id, Mend::Discard))
    }

    fn has(&self, directory: &str, digest: &Digest) -> bool {
        self.documents.get(directory).is_some_and(|documents| documents.contains(digest))
    }

    fn image(&self, found: &Found<ImageRecord>) -> Option<Verdict> {
        let image = match &found.record {
            Read::Is(image) if found.in_place => image,
            Read::Is(image) => {
                let problem = format!("is the record of {}, which belongs elsewhere", image.reference);
                return Some(verdict(Kind::ImageRecordUnreadable, &found.path, problem, Mend::Remove));
            }
            Read::Unreadable(error) => {
                let problem = format!("cannot be read: {error}");
                return Some(verdict(Kind::ImageRecordUnreadable, &found.path, problem, Mend::Remove));
            }
            Read::Absent => return None,
        };
        let absent = image.layers.iter().filter(|layer| !self.layers.contains(&layer.diff_id));
        let mut missing: Vec<String> = absent.map(|layer| format!("layer {}", layer.diff_id)).collect();
        // An archive keeps its documents to itself.
        if !image.loaded {
            for (directory, kind, digest) in
                [("manifests", "manifest", &image.manifest), ("configs", "config", &image.config)]
            {
                if !self.has(directory, digest) {
                    missing.push(format!("{kind} {digest}"));
                }
            }
        }
        if missing.is_empty() {
            return None;
        }
        missing.dedup();
        let problem = format!("needs what is not here: {}", missing.join(", "));
        let images = vec![image.reference.clone()];
        Some(Verdict { images, ..verdict(Kind::ImageIncomplete, &found.path, problem, Mend::Remove) })
    }

    fn lease(&self, found: &Found<Lease>) -> Option<Verdict> {
        let lease = match &found.record {
            Read::Is(lease) => lease,
            Read::Unreadable(error) => {
                let problem = format!("cannot be read, so what it held is not kept: {error}");
                return Some(verdict(Kind::LeaseUnreadable, &found.path, problem, Mend::Remove));
            }
            Read::Absent => return None,
        };
        let named = |kind, problem: String, mend| {
            let (images, held_by) = (vec![lease.reference.clone()], vec![lease.owner.clone()]);
            Some(Verdict { images, held_by, ..verdict(kind, &found.path, problem, mend) })
        };
        if self.nobodys.contains(&found.path) {
            let problem = format!("belongs to {:?}, which does not exist", lease.owner.to_string());
            return named(Kind::LeaseOfNobody, problem, Mend::Remove);
        }
        if !found.in_place {
            let problem = format!("is the lease of {:?}, which belongs elsewhere", lease.owner.to_string());
            return named(Kind::LeaseUnreadable, problem, Mend::Manual("end its task, then remove the file"));
        }
        let layers = lease.layers.iter().filter(|layer| !self.layers.contains(layer));
        let fixups = lease.fixups.iter().filter(|key| !self.fixups.contains(key));
        let missing: Vec<&str> = layers.chain(fixups).map(Digest::as_str).collect();
        // What a pull holds before it has fetched it.
        if missing.is_empty() || !lease.ready {
            return None;
        }
        let problem = format!("holds what is not here: {}", missing.join(", "));
        named(Kind::LeaseDangling, problem, Mend::Manual("pull the image again, or end the task"))
    }

    fn fixup(&self, path: &PathBuf, key: &Digest, files: bool) -> Option<Verdict> {
        let held_by = self.holding(key);
        if held_by.is_empty() {
            return Some(verdict(Kind::FixupUnused, path, "is not in use", Mend::Discard));
        }
        (!files).then(|| self.droppable(Kind::FixupEmptied, path, "has no files".into(), key, Mend::Discard))
    }
}

fn readable<T>(found: &Found<T>) -> Option<(&PathBuf, &T)> {
    match &found.record {
        Read::Is(record) => Some((&found.path, record)),
        Read::Absent | Read::Unreadable(_) => None,
    }
}
