//! The record of an image: a small JSON file that names its manifest, its config and its layers.
//!
//! The verified bytes of manifest and config lie beside the records under their digests.

use std::{
    path::PathBuf,
    time::{SystemTime, UNIX_EPOCH},
};

use layer::Digest;
use serde::{Deserialize, Serialize};

use super::layout::Layout;
use crate::{error::StoreError, files, native::NativeLayer, reference::Reference};

/// An image that the store knows by a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRecord {
    /// The name.
    pub reference: Reference,
    /// The digest that the name resolved to at the registry, of an index or a manifest.
    pub resolved: Digest,
    /// The manifest for this machine.
    pub manifest: Digest,
    /// Its config. Other tools call its digest the image id.
    pub config: Digest,
    /// Its layers, bottom first.
    pub layers: Vec<LayerRecord>,
    /// When the registry was last asked, or the archive was read, in seconds since 1970.
    pub pulled_at: u64,
    /// The image came from an archive. The record of an archive that a task loads lies beside the record of a pulled
    /// image of the same name and never replaces it: a task's archive must not decide what a name means at a registry.
    #[serde(default)]
    pub loaded: bool,
    /// The node's administrator added the name. Every caller gets the image, no registry is asked for it, and garbage
    /// collection keeps it.
    #[serde(default)]
    pub pinned: bool,
    /// The callers that get the image without a question to the registry.
    #[serde(default)]
    pub access: Access,
}

/// The source of a record that is to be saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecordSource {
    /// From the registry, just now.
    Registry,
    /// From the record on disk. Another caller may have asked the registry since.
    Record,
}

/// The callers that a registry gave an image to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    /// Callers without credentials, so every caller.
    Anyone,
    /// The callers whose credentials have these fingerprints.
    Holders(Vec<Digest>),
}

/// Access is unknown, so every caller must prove that it may have the image.
impl Default for Access {
    fn default() -> Self {
        Self::Holders(Vec::new())
    }
}

impl Access {
    /// Enough for credentials that change every few hours.
    const MAX_HOLDERS: usize = 32;

    /// Whether this caller got the image before. `None` is a caller without credentials.
    pub(crate) fn includes(&self, holder: Option<&Digest>) -> bool {
        match self {
            Self::Anyone => true,
            Self::Holders(holders) => holder.is_some_and(|holder| holders.contains(holder)),
        }
    }

    /// Adds the holders of another record of the same content.
    fn merge(&mut self, theirs: &Access) {
        match theirs {
            Self::Anyone => *self = Self::Anyone,
            Self::Holders(holders) => {
                // Our holders are the newest: they must not be the ones that are dropped at the maximum.
                match std::mem::replace(self, Self::Holders(holders.clone())) {
                    Self::Anyone => *self = Self::Anyone,
                    Self::Holders(ours) => ours.into_iter().for_each(|holder| {
                        self.grant(Some(holder));
                    }),
                }
            }
        }
    }

    /// Records that the registry gives the image to this caller. Returns whether this changed anything.
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
    /// The size of the blob in bytes.
    pub size: u64,
    /// The digest of the unpacked blob.
    pub diff_id: Digest,
    /// The blob is a native image. It is not unpacked, so both digests are the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub native: Option<NativeLayer>,
}

impl ImageRecord {
    /// Compressed size of all layers, in bytes.
    pub fn size(&self) -> u64 {
        // A manifest claims these sizes, so the sum may overflow.
        self.layers.iter().fold(0, |sum, layer| sum.saturating_add(layer.size))
    }

    /// Whether its layers are native images.
    pub(crate) fn has_native_layers(&self) -> bool {
        self.layers.iter().any(|layer| layer.native.is_some())
    }

    /// Whether an index chose the native image of this record, so that its original may take its place. Pure.
    ///
    /// A name with the digest of the native manifest forbids any other, also if the record came from the index.
    pub(crate) fn has_an_original(&self) -> bool {
        let chosen_by_index = self.resolved != self.manifest;
        let allowed = self.reference.digest().is_none_or(|digest| *digest == self.resolved);
        self.has_native_layers() && chosen_by_index && allowed
    }

    /// The record to write when this one is saved over the record on disk; `None`: the record on disk stays. Pure.
    ///
    /// Another process may have saved its record since ours was read. The access that it learned for the same content
    /// is kept. Content that the registry named later is not replaced by content that it named earlier.
    pub(crate) fn over(&self, on_disk: Option<ImageRecord>, source: RecordSource, now: u64) -> Option<ImageRecord> {
        let Some(theirs) = on_disk else { return Some(self.clone()) };
        if theirs.resolved != self.resolved || theirs.manifest != self.manifest {
            // A time in the future means that the clock was set back; such a record must not stay for ever.
            let outdated = theirs.pulled_at <= self.pulled_at || theirs.pulled_at > now;
            return (source == RecordSource::Registry && outdated).then(|| self.clone());
        }
        let mut merged = self.clone();
        merged.access.merge(&theirs.access);
        merged.pinned |= theirs.pinned;
        if theirs.pulled_at <= now {
            merged.pulled_at = merged.pulled_at.max(theirs.pulled_at);
        }
        Some(merged)
    }

    /// The path of the record. The modification time of the file is the last use of the image.
    pub(crate) fn path(&self, layout: &Layout) -> PathBuf {
        if self.is_of_a_task() { layout.loaded(&self.reference, &self.manifest) } else { layout.image(&self.reference) }
    }

    /// Whether the image came from the archive of a task. No other task may take it for the image of its name.
    pub(super) fn is_of_a_task(&self) -> bool {
        self.loaded && !self.pinned
    }

    /// The documents that must be on disk: directory, kind and digest. A task's archive keeps its documents, and an
    /// archive of `docker save` has no manifest.
    pub(crate) fn documents(&self) -> Vec<(&'static str, &'static str, &Digest)> {
        let (manifest, config) = (("manifests", "manifest", &self.manifest), ("configs", "config", &self.config));
        match (self.loaded, self.pinned) {
            (true, false) => Vec::new(),
            (true, true) => vec![config],
            (false, _) => vec![manifest, config],
        }
    }
}

/// All readable records of images.
pub(crate) fn images(layout: &Layout) -> Result<Vec<ImageRecord>, StoreError> {
    files::read_all(&layout.directory("images"))
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
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
            pinned: false,
            access: Access::Holders(holders.iter().map(|name| Digest::sha256(name.as_bytes())).collect()),
        }
    }

    #[test]
    fn records_that_other_processes_saved_meanwhile_are_not_lost() {
        let (registry, before) = (RecordSource::Registry, RecordSource::Record);
        let ours = record("old", 10, &["a", "b"]);
        assert_eq!(ours.over(None, before, 99), Some(ours.clone()));
        // The same content for another caller: both get it.
        let merged = record("old", 12, &["a", "c", "b"]);
        assert_eq!(ours.over(Some(record("old", 12, &["a", "c"])), before, 99), Some(merged.clone()));
        assert_eq!(merged.over(Some(merged.clone()), registry, 99), Some(merged));
        let public = ImageRecord { access: Access::Anyone, ..record("old", 3, &[]) };
        assert_eq!(ours.over(Some(public), before, 99).unwrap().access, Access::Anyone);
        // The name has a new meaning: a caller that only knows the old content changes nothing.
        assert_eq!(ours.over(Some(record("new", 10, &["c"])), before, 99), None);
        assert_eq!(ours.over(Some(record("new", 11, &["c"])), registry, 99), None);
        // The administrator's pin stays with its content.
        let pinned = |name, at| Some(ImageRecord { pinned: true, ..record(name, at, &[]) });
        assert!(ours.over(pinned("old", 3), registry, 99).unwrap().pinned);
        assert!(!ours.over(pinned("new", 3), registry, 99).unwrap().pinned);
        // Access to other content is not merged.
        assert_eq!(ours.over(Some(record("new", 9, &["c"])), registry, 99), Some(ours.clone()));
        assert_eq!(ours.over(Some(record("new", 1000, &["c"])), registry, 99), Some(ours.clone()));
    }

    #[test]
    fn only_a_native_image_that_an_index_chose_has_an_original() {
        let [index, manifest] = ["index", "manifest"].map(|name| Digest::sha256(name.as_bytes()));
        let native = NativeLayer { metadata: 4096, hash_root: manifest.clone(), first: Vec::new() };
        let of = |name: &str, resolved: &Digest, native: Option<&NativeLayer>| {
            let layer =
                LayerRecord { blob: manifest.clone(), size: 1, diff_id: manifest.clone(), native: native.cloned() };
            let record = record("manifest", 1, &[]);
            let (reference, resolved) = (name.parse().unwrap(), resolved.clone());
            ImageRecord { reference, resolved, layers: vec![layer], ..record }.has_an_original()
        };
        let by_digest = |digest: &Digest| format!("r.example/a@{digest}");
        assert!(of("r.example/a:1", &index, Some(&native)));
        assert!(of(&by_digest(&index), &index, Some(&native)));
        assert!(!of("r.example/a:1", &index, None));
        assert!(!of("r.example/a:1", &manifest, Some(&native)));
        // The digest of the native manifest forbids its original, also if the index is known by another name.
        assert!(!of(&by_digest(&manifest), &index, Some(&native)));
        assert!(!of(&by_digest(&manifest), &manifest, Some(&native)));
    }
}
