//! Facts about the store on disk, as values for the judgement.
//!
//! Only questions that need the disk are answered here: whether bytes hash to their name, whether a process still holds
//! its staging directory, whether the files of a layer match their summary.

use std::{
    collections::{BTreeSet, HashMap},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use layer::Digest;
use serde::de::DeserializeOwned;

use super::super::{
    image_record::ImageRecord,
    layers::{self, LayerMeta},
    layout::{DIRECTORIES, FILES, Layout, Version, boot_id},
    lease_record::Lease,
    partial, staging_lock,
    tree::{self, TreeSummary},
};
use crate::{error::StoreError, files};

/// The facts about one store. Paths are relative to the directory of the store.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub(super) version: Version,
    pub(super) boot_id: String,
    /// The user of this process, who should own everything.
    pub(super) owner: u32,
    /// The store's own directory has an empty path.
    pub(super) directories: Vec<(PathBuf, Directory)>,
    pub(super) layers: Vec<LayerFacts>,
    /// Layers whose data is coming.
    pub(super) incomplete: BTreeSet<Digest>,
    /// Layers of implied directories, and whether they have files.
    pub(super) implied: Vec<(PathBuf, Digest, bool)>,
    /// Manifests and configs, and whether their bytes hash to their name.
    pub(super) documents: Vec<(PathBuf, Digest, bool)>,
    pub(super) images: Vec<RecordFile<ImageRecord>>,
    pub(super) leases: Vec<RecordFile<Lease>>,
    /// Paths of leases that ended processes left.
    pub(super) abandoned_leases: BTreeSet<PathBuf>,
    /// Staging directories of ended processes.
    pub(super) abandoned_staging: Vec<PathBuf>,
    pub(super) trash: Vec<PathBuf>,
    pub(super) temporaries: Vec<PathBuf>,
    pub(super) foreign: Vec<PathBuf>,
}

/// The state of one of the directories of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Directory {
    Missing,
    /// A file or a link.
    Replaced,
    Present {
        mode: u32,
        owner: u32,
    },
}

#[derive(Debug, Clone)]
pub(super) struct LayerFacts {
    pub(super) path: PathBuf,
    pub(super) diff_id: Digest,
    pub(super) record: Read<LayerMeta>,
    pub(super) files: Files,
}

/// The result of reading a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Read<T> {
    Absent,
    Unreadable(String),
    Is(T),
}

/// The comparison of the files of a layer with their summary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Files {
    Absent,
    /// There is no summary, or the layer appeared during the check.
    NotCompared,
    AsUnpacked,
    /// They differ from the summary in this way.
    Changed(String),
}

/// A record file.
#[derive(Debug, Clone)]
pub(super) struct RecordFile<T> {
    pub(super) path: PathBuf,
    pub(super) record: Read<T>,
    /// The file has the name that its content requires.
    pub(super) in_place: bool,
    pub(super) age: Duration,
}

/// Fails for a directory that never was a store: a mistyped path must not become a store.
pub(super) fn expect_store(root: &Path) -> Result<(), StoreError> {
    let known = |name: &str| root.join(name).symlink_metadata().is_ok();
    if DIRECTORIES.iter().chain(&FILES[..1]).any(|name| known(name)) {
        return Ok(());
    }
    Err(StoreError::io("looking for an image store in", root)(io::Error::from(io::ErrorKind::NotFound)))
}

/// The comparisons of layers, by device and inode of their files: a layer that was replaced meanwhile has another
/// inode.
pub(super) type Trees = HashMap<(u64, u64), Files>;

/// Compares the layers that have a summary. Takes long for many layers; needs no lock.
pub(super) fn examine_layers(layout: &Layout) -> Result<Trees, StoreError> {
    let mut trees = Trees::new();
    if matches!(layout.version()?, Version::Other(_)) {
        return Ok(trees);
    }
    for path in listing(&layout.directory("layers"))? {
        let Read::Is(LayerMeta { tree: Some(expected), .. }) = read(&path.join(layers::RECORD))? else { continue };
        let Some(identity) = identity(&path) else { continue };
        let files = match difference(&path, &expected) {
            Ok(difference) => difference.map_or(Files::AsUnpacked, Files::Changed),
            Err(error) => Files::Changed(format!("cannot be read: {error}")),
        };
        trees.insert(identity, files);
    }
    Ok(trees)
}

/// The difference between a layer's files and their summary. An image is mounted too: the kernel must accept it.
fn difference(layer: &Path, expected: &TreeSummary) -> Result<Option<String>, StoreError> {
    let mounted = layers::open(layer)?;
    if layers::tree_of(layer)? == *expected {
        return Ok(None);
    }
    // Earlier builds took the summary of an image through a mount. The kernel shows an access list with other unused
    // ids than the image has, and a capability of the root user in an older form.
    Ok(expected.difference(&tree::summarize(&mounted, layer)?))
}

/// Device and inode of the files of a layer, or of a layer of implied directories.
fn identity(layer: &Path) -> Option<(u64, u64)> {
    let meta = |name: &str| layer.join(name).symlink_metadata().ok();
    let directory = || meta(layers::DIRECTORY).filter(std::fs::Metadata::is_dir);
    let meta = meta(layers::IMAGE).filter(std::fs::Metadata::is_file).or_else(directory)?;
    Some((meta.dev(), meta.ino()))
}

/// Lists the store. The caller holds the exclusive store lock.
pub(super) fn collect(layout: &Layout, trees: &Trees) -> Result<Facts, StoreError> {
    let mut facts = Facts {
        version: layout.version()?,
        boot_id: boot_id()?,
        owner: rustix::process::geteuid().as_raw(),
        directories: Vec::new(),
        layers: Vec::new(),
        incomplete: BTreeSet::new(),
        implied: Vec::new(),
        documents: Vec::new(),
        images: Vec::new(),
        leases: Vec::new(),
        abandoned_leases: BTreeSet::new(),
        abandoned_staging: Vec::new(),
        trash: Vec::new(),
        temporaries: Vec::new(),
        foreign: Vec::new(),
    };
    if matches!(facts.version, Version::Other(_)) {
        return Ok(facts);
    }
    let mut lister = Lister { layout, trees, facts: &mut facts };
    lister.root()?;
    for name in DIRECTORIES {
        let path = layout.directory(name);
        let state = directory(&path)?;
        lister.facts.directories.push((name.into(), state));
        if matches!(state, Directory::Present { .. }) {
            for path in listing(&path)? {
                lister.entry(name, &path)?;
            }
        }
    }
    Ok(facts)
}

struct Lister<'a> {
    layout: &'a Layout,
    trees: &'a Trees,
    facts: &'a mut Facts,
}

impl Lister<'_> {
    fn relative(&self, path: &Path) -> PathBuf {
        path.strip_prefix(self.layout.root()).unwrap_or(path).to_owned()
    }

    fn root(&mut self) -> Result<(), StoreError> {
        let root = self.layout.root();
        self.facts.directories.push((PathBuf::new(), directory(root)?));
        for path in listing(root)? {
            let name = path.file_name().unwrap_or_default();
            if is_temporary(&path) {
                self.facts.temporaries.push(self.relative(&path));
            } else if name == "empty" && path.is_dir() {
                // The only layer of an image without layers: every file in it would appear in its containers.
                let inside: Vec<_> = listing(&path)?.iter().map(|path| self.relative(path)).collect();
                self.facts.foreign.extend(inside);
            } else if !DIRECTORIES.iter().chain(&FILES).any(|known| name == *known) {
                self.facts.foreign.push(self.relative(&path));
            }
        }
        Ok(())
    }

    /// Adds one entry of one of the store's directories.
    fn entry(&mut self, directory: &str, path: &Path) -> Result<(), StoreError> {
        let relative = self.relative(path);
        if directory == "trash" {
            self.facts.trash.push(relative);
            return Ok(());
        }
        if is_temporary(path) {
            self.facts.temporaries.push(relative);
            return Ok(());
        }
        let meta = path.symlink_metadata().map_err(StoreError::io("examining", path))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let digest = Digest::from_hex(&name);
        match (directory, digest) {
            ("layers", Some(diff_id)) if meta.is_dir() => self.layer(path, diff_id)?,
            // The file of events.
            ("partial", None) if meta.is_file() => {}
            ("partial", Some(_)) if meta.is_dir() => {
                self.facts.incomplete.extend(partial::read(path)?.map(|partial| partial.meta.diff_id));
            }
            ("fixups", Some(key)) if meta.is_dir() => {
                self.facts.implied.push((relative, key, identity(path).is_some()));
            }
            ("configs" | "manifests", Some(digest)) if meta.is_file() => {
                let bytes = std::fs::read(path).map_err(StoreError::io("reading", path))?;
                let intact = digest.matches(&bytes);
                self.facts.documents.push((relative, digest, intact));
            }
            // A lock file without a holder does no harm.
            ("locks", Some(_)) if meta.is_file() => {}
            ("staging", _) if meta.is_dir() => {
                if staging_lock::is_abandoned(path)? {
                    self.facts.abandoned_staging.push(relative);
                }
            }
            ("images", _) if meta.is_file() && is_record(&name) => {
                let file = record_file(path, relative, &meta, |image: &ImageRecord| image.path(self.layout))?;
                self.facts.images.push(file);
            }
            ("leases", _) if meta.is_file() && is_record(&name) => {
                let file = record_file(path, relative, &meta, |lease: &Lease| self.layout.lease(&lease.owner))?;
                if let Read::Is(lease) = &file.record
                    && lease.is_abandoned(self.layout)?
                {
                    self.facts.abandoned_leases.insert(file.path.clone());
                }
                self.facts.leases.push(file);
            }
            _ => self.facts.foreign.push(relative),
        }
        Ok(())
    }

    fn layer(&mut self, path: &Path, diff_id: Digest) -> Result<(), StoreError> {
        for inside in listing(path)? {
            let names = [layers::DIRECTORY, layers::IMAGE, layers::READS, layers::EARLIER_READS, layers::RECORD];
            let known = names.iter().any(|name| inside.ends_with(name));
            if is_temporary(&inside) {
                self.facts.temporaries.push(self.relative(&inside));
            } else if !known {
                self.facts.foreign.push(self.relative(&inside));
            }
        }
        let files = match identity(path) {
            None => Files::Absent,
            Some(identity) => self.trees.get(&identity).cloned().unwrap_or(Files::NotCompared),
        };
        let record = read(&path.join(layers::RECORD))?;
        self.facts.layers.push(LayerFacts { path: self.relative(path), diff_id, record, files });
        Ok(())
    }
}

fn record_file<T: DeserializeOwned>(
    path: &Path,
    relative: PathBuf,
    meta: &std::fs::Metadata,
    place: impl Fn(&T) -> PathBuf,
) -> Result<RecordFile<T>, StoreError> {
    let record: Read<T> = read(path)?;
    let in_place = !matches!(&record, Read::Is(record) if place(record) != path);
    let modified = meta.modified().map_err(StoreError::io("examining", path))?;
    let age = SystemTime::now().duration_since(modified).unwrap_or_default();
    Ok(RecordFile { path: relative, record, in_place, age })
}

/// `<hash>.json`.
fn is_record(name: &str) -> bool {
    name.strip_suffix(".json").is_some_and(|hash| Digest::from_hex(hash).is_some())
}

fn is_temporary(path: &Path) -> bool {
    files::is_temporary(path) && path.symlink_metadata().is_ok_and(|meta| meta.is_file())
}

fn directory(path: &Path) -> Result<Directory, StoreError> {
    match path.symlink_metadata() {
        Ok(meta) if meta.is_dir() => Ok(Directory::Present { mode: meta.mode() & 0o7777, owner: meta.uid() }),
        Ok(_) => Ok(Directory::Replaced),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Directory::Missing),
        Err(error) => Err(StoreError::io("examining", path)(error)),
    }
}

/// The sorted entries of a directory. Empty if there is no directory.
fn listing(directory: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(StoreError::io("listing", directory)(error)),
    };
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>();
    let mut paths = paths.map_err(StoreError::io("listing", directory))?;
    paths.sort();
    Ok(paths)
}

/// Reads a record. Unlike [`files::read_json`], tells why it cannot be read.
fn read<T: DeserializeOwned>(path: &Path) -> Result<Read<T>, StoreError> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(match serde_json::from_slice(&bytes) {
            Ok(record) => Read::Is(record),
            Err(error) => Read::Unreadable(error.to_string()),
        }),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(Read::Absent)
        }
        // A bad sector is damage of this file; the check continues with the others.
        Err(error) => Ok(Read::Unreadable(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_of_mounted_images_are_still_compared() {
        let layer = tempfile::tempdir().unwrap();
        let image = layer.path().join(layers::IMAGE);
        // The kernel shows no other id in the owner's entry of an access list.
        let owner = [&1u16.to_le_bytes()[..], &7u16.to_le_bytes(), &u32::MAX.to_le_bytes()].concat();
        let mut bytes = layer::SampleImage::new().unwrap().bytes;
        let at = bytes.windows(owner.len()).position(|window| window == owner).unwrap();
        bytes[at + 4..at + 8].fill(7);
        std::fs::write(&image, &bytes).unwrap();
        let mounted = match layers::open(layer.path()) {
            Ok(mounted) => mounted,
            Err(error) => return println!("skipped: an image cannot be mounted here: {error}"),
        };
        let earlier = tree::summarize(&mounted, layer.path()).unwrap();
        drop(mounted);
        let now = layers::tree_of(layer.path()).unwrap();
        assert_ne!(earlier, now);
        for expected in [&earlier, &now] {
            assert_eq!(difference(layer.path(), expected).unwrap(), None);
        }
        // Another permission is a difference.
        bytes[at + 2] = 5;
        std::fs::write(&image, &bytes).unwrap();
        for expected in [&earlier, &now] {
            assert!(difference(layer.path(), expected).unwrap().is_some());
        }
    }
}
