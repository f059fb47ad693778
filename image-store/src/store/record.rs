//! Images and leases: small JSON files that say which layers are wanted, and by whom.
//!
//! An image record names a manifest; the verified bytes of manifest and config stand beside it under their digests. A lease names
//! the directories that one task mounts; they stay until it is released, whatever happens to the image.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

use super::layout::Layout;
use crate::{
    commit::{self, Durability},
    digest::Digest,
    error::StoreError,
    lease::LeaseOwner,
    reference::Reference,
};

/// An image that the store knows by a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRecord {
    /// The name.
    pub reference: Reference,
    /// What the name resolved to at the registry: an index or a manifest.
    pub resolved: Digest,
    /// The manifest for this machine.
    pub manifest: Digest,
    /// Its config, which is what others call the image id.
    pub config: Digest,
    /// Its layers, bottom first.
    pub layers: Vec<LayerRecord>,
    /// When the registry was last asked, or the archive read, in seconds since 1970.
    pub pulled_at: u64,
    /// It came from an archive that somebody handed in. Such a record stands beside a pulled one of the same name and is never
    /// taken for it: what an archive says about itself must not become what a registry's name means.
    #[serde(default)]
    pub loaded: bool,
    /// Who may have it without the registry being asked.
    #[serde(default)]
    pub access: Access,
}

/// Where what is about to be saved was learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// The registry said what the name means now.
    Registry,
    /// It is what the record said before, and somebody else may have asked the registry since.
    Record,
}

/// To whom the registry gave an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    /// To callers without credentials, which means to everybody.
    Anyone,
    /// To those whose credentials have these fingerprints.
    Holders(Vec<Digest>),
}

/// Nobody knows, so that everybody has to show that they may have it.
impl Default for Access {
    fn default() -> Self {
        Self::Holders(Vec::new())
    }
}

impl Access {
    /// As many as credentials that change every few hours need.
    const MAX_HOLDERS: usize = 32;

    /// Whether this caller got it before; `None` is a caller without credentials.
    pub(crate) fn includes(&self, holder: Option<&Digest>) -> bool {
        match self {
            Self::Anyone => true,
            Self::Holders(holders) => holder.is_some_and(|holder| holders.contains(holder)),
        }
    }

    /// Adds those whom another record of the same content names.
    fn merge(&mut self, theirs: &Access) {
        match theirs {
            Self::Anyone => *self = Self::Anyone,
            Self::Holders(holders) => {
                // Ours are the latest ones: they must not be those that fall out.
                match std::mem::replace(self, Self::Holders(holders.clone())) {
                    Self::Anyone => *self = Self::Anyone,
                    Self::Holders(ours) => ours.into_iter().for_each(|holder| {
                        self.grant(Some(holder));
                    }),
                }
            }
        }
    }

    /// Notes that the registry gives it to this caller. Returns whether that is news.
    pub(crate) fn grant(&mut self, holder: Option<Digest>) -> bool {
        if self.includes(holder.as_ref()) {
            return false;
        }
        match (self, holder) {
            (Self::Holders(holders), Some(holder)) => {
                holders.push(holder);
                if holders.len() > Self::MAX_HOLDERS {
                    holders.remove(0);
                }
            }
            (access, _) => *access = Self::Anyone,
        }
        true
    }
}

/// One layer of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerRecord {
    /// The blob in the registry.
    pub blob: Digest,
    /// Its size there.
    pub size: u64,
    /// What it unpacks to.
    pub diff_id: Digest,
}

impl ImageRecord {
    /// Compressed size of all layers.
    pub fn size(&self) -> u64 {
        // What a manifest claims, so it may be anything.
        self.layers.iter().fold(0, |sum, layer| sum.saturating_add(layer.size))
    }

    /// What becomes of the record on disk when this one is to be saved; `None`: it stays as it is. Pure.
    ///
    /// Others may have saved theirs since ours was read: what they learned about who may have the same content is kept, and content that
    /// the registry named later is not replaced by what it meant earlier.
    pub(crate) fn over(&self, on_disk: Option<ImageRecord>, source: Source, now: u64) -> Option<ImageRecord> {
        let Some(theirs) = on_disk else { return Some(self.clone()) };
        if theirs.resolved != self.resolved || theirs.manifest != self.manifest {
            // A clock that was set back must not keep a record for ever.
            let outdated = theirs.pulled_at <= self.pulled_at || theirs.pulled_at > now;
            return (source == Source::Registry && outdated).then(|| self.clone());
        }
        let mut merged = self.clone();
        merged.access.merge(&theirs.access);
        if theirs.pulled_at <= now {
            merged.pulled_at = merged.pulled_at.max(theirs.pulled_at);
        }
        Some(merged)
    }

    /// Where the record is. The file's modification time is when the image was last used.
    pub(crate) fn path(&self, layout: &Layout) -> PathBuf {
        if self.loaded { layout.loaded(&self.reference, &self.manifest) } else { layout.image(&self.reference) }
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The directories that a task uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lease {
    /// The name of the lease.
    #[serde(rename = "name")]
    pub(crate) owner: LeaseOwner,
    pub(crate) reference: Reference,
    pub(crate) manifest: Digest,
    pub(crate) layers: Vec<Digest>,
    #[serde(default)]
    pub(crate) fixups: Vec<Digest>,
    /// Everything that it names is there. Until then a pull holds it, to keep what it finds and fetches.
    #[serde(default = "yes")]
    pub(crate) ready: bool,
}

fn yes() -> bool {
    true
}

impl Lease {
    pub(crate) fn write(&self, layout: &Layout) -> Result<(), StoreError> {
        commit::write_json(&layout.lease(&self.owner), self, Durability::Later)
    }

    /// Notes that the lease's image is used now.
    pub(crate) fn touch_image(&self, layout: &Layout) -> Result<(), StoreError> {
        touch(&layout.image(&self.reference))?;
        touch(&layout.loaded(&self.reference, &self.manifest))
    }

    pub(crate) fn read(layout: &Layout, owner: &LeaseOwner) -> Result<Option<Lease>, StoreError> {
        commit::read_json(&layout.lease(owner))
    }
}

/// Notes that an image is used now; one that is unknown is fine.
pub(crate) fn touch(path: &Path) -> Result<(), StoreError> {
    let touched = std::fs::File::open(path).and_then(|file| file.set_modified(SystemTime::now()));
    match touched {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(StoreError::io("touching", path)(error)),
        _ => Ok(()),
    }
}

/// Removes a file; one that is gone already is fine.
pub(crate) fn remove_file(path: &Path) -> Result<(), StoreError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(StoreError::io("removing", path)(error)),
        _ => Ok(()),
    }
}

/// All records of one kind, unreadable ones left out.
pub(crate) fn all<T: serde::de::DeserializeOwned>(layout: &Layout, directory: &str) -> Result<Vec<T>, StoreError> {
    let mut records = Vec::new();
    for path in commit::entries(&layout.directory(directory))? {
        records.extend(commit::read_json(&path)?);
    }
    Ok(records)
}

/// The directories and files that some record wants.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    names: BTreeSet<PathBuf>,
}

impl Wanted {
    pub(crate) fn collect(layout: &Layout, images: &[ImageRecord], leases: &[Lease]) -> Wanted {
        let mut names = BTreeSet::new();
        for image in images {
            names.insert(layout.manifest(&image.manifest));
            names.insert(layout.config(&image.config));
            names.extend(image.layers.iter().map(|layer| layout.layer(&layer.diff_id)));
        }
        for lease in leases {
            names.extend(lease.layers.iter().map(|layer| layout.layer(layer)));
            names.extend(lease.fixups.iter().map(|fixup| layout.fixup(fixup)));
        }
        Wanted { names }
    }

    /// Wants these layers too.
    pub(crate) fn spare(&mut self, layout: &Layout, layers: &BTreeSet<Digest>) {
        self.names.extend(layers.iter().map(|layer| layout.layer(layer)));
    }

    pub(crate) fn contains(&self, path: &Path) -> bool {
        self.names.contains(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(resolved: &str, pulled_at: u64, holders: &[&str]) -> ImageRecord {
        let digest = Digest::sha256(resolved.as_bytes());
        ImageRecord {
            reference: "r.example/a:1".parse().unwrap(),
            resolved: digest.clone(),
            manifest: digest.clone(),
            config: digest,
            layers: Vec::new(),
            pulled_at,
            loaded: false,
            access: Access::Holders(holders.iter().map(|name| Digest::sha256(name.as_bytes())).collect()),
        }
    }

    #[test]
    fn what_others_saved_meanwhile_is_not_lost() {
        let (registry, before) = (Source::Registry, Source::Record);
        let ours = record("old", 10, &["a", "b"]);
        assert_eq!(ours.over(None, before, 99), Some(ours.clone()));
        // The same content for somebody else: both may have it.
        let merged = record("old", 12, &["a", "c", "b"]);
        assert_eq!(ours.over(Some(record("old", 12, &["a", "c"])), before, 99), Some(merged.clone()));
        assert_eq!(merged.over(Some(merged.clone()), registry, 99), Some(merged));
        let everybody = ImageRecord { access: Access::Anyone, ..record("old", 3, &[]) };
        assert_eq!(ours.over(Some(everybody), before, 99).unwrap().access, Access::Anyone);
        // The name moved on: who only learned something about the old content keeps out.
        assert_eq!(ours.over(Some(record("new", 10, &["c"])), before, 99), None);
        assert_eq!(ours.over(Some(record("new", 11, &["c"])), registry, 99), None);
        // Those of other content do not get ours.
        assert_eq!(ours.over(Some(record("new", 9, &["c"])), registry, 99), Some(ours.clone()));
        assert_eq!(ours.over(Some(record("new", 1000, &["c"])), registry, 99), Some(ours.clone()));
    }
}
