//! Tar entries → files of a layer, in any store.
//!
//! A later entry beats an earlier one, and it beats a whiteout of the same layer. Whiteouts and opaque marks are
//! therefore made when the archive has ended. A directory that was removed and made again hides the lower layers'
//! content.

use std::{
    collections::BTreeSet,
    io::{self, BufRead},
    rc::Rc,
};

use super::{
    attributes::{Attributes, SkippedXattrs},
    checks,
    entry_path::EntryPath,
    lookup::Lookup,
    store::{LayerStore, LookupError, Place, SpecialFile},
    trial::Trial,
};
use crate::{
    error::UnpackError,
    limits::Limits,
    path,
    tar::{EntryKind, TarEntry, TarReader},
};

/// The most names of a file. ext4 has no more, and both forms of a layer must agree.
pub(crate) const MAX_NAMES: u64 = 65_000;

/// Applies the entries of one layer.
pub(crate) struct Applier<S: LayerStore> {
    pub(crate) store: S,
    pub(super) lookup: Lookup<S::Dir>,
    pub(crate) limits: Limits,
    /// Parent and name, in the order of the archive.
    pub(super) whiteouts: Vec<(Vec<u8>, Vec<u8>)>,
    /// Canonical paths of directories with an opaque mark.
    pub(super) opaque: BTreeSet<Vec<u8>>,
    pub(super) entries: u64,
    /// The sum of the apparent sizes of sparse files.
    apparent: u64,
    pub(super) skipped: SkippedXattrs,
    trial: Trial,
}

/// What is known about a layer when all its entries were applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// Entries of the archive.
    pub entries: u64,
    /// Paths of directories that the archive uses without describing them.
    pub implied_directories: Vec<Vec<u8>>,
    /// The layer hides everything below it. The kernel ignores the mark on a layer's root.
    pub opaque_root: bool,
    /// Extended attributes that were left out.
    pub skipped: SkippedXattrs,
}

impl<S: LayerStore> Applier<S> {
    /// Takes an empty store. `trial` is for the file system of the containers' writable layers.
    pub(crate) fn new(store: S, limits: Limits, trial: Trial) -> Self {
        Self {
            store,
            lookup: Lookup::new(),
            limits,
            whiteouts: Vec::new(),
            opaque: BTreeSet::new(),
            entries: 0,
            apparent: 0,
            skipped: SkippedXattrs::default(),
            trial,
        }
    }

    /// Gives the state of this applier to one whose store has the same files. Returns the old store.
    pub(crate) fn hand_over<T: LayerStore>(self, to: &mut Applier<T>) -> S {
        to.whiteouts = self.whiteouts;
        to.opaque = self.opaque;
        to.entries = self.entries;
        to.apparent = self.apparent;
        to.skipped = self.skipped;
        self.store
    }

    /// Whether no entry describes the directory at this canonical path so far.
    pub(crate) fn is_implied(&self, path: &[u8]) -> bool {
        self.lookup.implied().contains(path)
    }

    /// Applies one entry and reads its data from the archive.
    pub(crate) fn apply<R: BufRead>(
        &mut self,
        entry: &TarEntry,
        archive: &mut TarReader<R>,
    ) -> Result<(), UnpackError> {
        self.entries += 1;
        self.check_entries()?;
        match checks::classify(entry)? {
            EntryPath::Ignored => Ok(()),
            EntryPath::Root => self.root(entry),
            EntryPath::Opaque { dir } => {
                let dir = self.parent(&dir)?;
                self.store.keep(dir.path.len())?;
                self.opaque.insert(dir.path.clone());
                Ok(())
            }
            EntryPath::Whiteout { parent, name } => {
                let parent = self.parent(&parent)?;
                self.remember_whiteout(&parent, name)
            }
            EntryPath::File { parent, name } => {
                let parent = self.parent(&parent)?;
                self.make(entry, &parent, &name, archive)
            }
        }
    }

    /// The directory that an entry lies in. Makes the missing ones.
    pub(crate) fn parent(&mut self, path: &[u8]) -> Result<Rc<Place<S::Dir>>, UnpackError> {
        let made = self.lookup.made();
        let parent = self.lookup.find_or_make(&mut self.store, path).map_err(checks::no_parent)?;
        let new = self.lookup.made() - made;
        if new > 0 {
            self.check_entries()?;
            self.store.keep(new * (parent.path.len() + S::IMPLIED_BYTES))?;
        }
        Ok(parent)
    }

    /// The layer's root gets the entry's attributes.
    pub(crate) fn root(&mut self, entry: &TarEntry) -> Result<(), UnpackError> {
        self.lookup.described(b"");
        let attributes = self.attributes(entry)?;
        self.store.describe_root(attributes, &mut self.skipped)
    }

    /// A directory. One that exists stays, with the attributes of this entry.
    pub(crate) fn dir(&mut self, entry: &TarEntry, parent: &Place<S::Dir>, name: &[u8]) -> Result<(), UnpackError> {
        let failed = |error| UnpackError::disk("creating it", error);
        let attributes = self.attributes(entry)?;
        if self.store.create_dir(parent, name).map_err(failed)?.is_none() {
            let existing = self.store.find(parent, name).map_err(failed)?;
            if !existing.is_some_and(|existing| existing.is_dir()) {
                self.replacing(parent, name, |store, _| store.create_dir(parent, name).map_err(failed))?;
            }
        }
        self.lookup.described(&path::join(&parent.path, name));
        self.store.describe_dir(parent, name, attributes, &mut self.skipped)
    }

    /// A regular file with the data that `fill` writes.
    pub(crate) fn file(
        &mut self,
        entry: &TarEntry,
        parent: &Place<S::Dir>,
        name: &[u8],
        fill: impl FnOnce(&mut Self, &mut S::File) -> Result<(), UnpackError>,
    ) -> Result<(), UnpackError> {
        let failed = |error| UnpackError::disk("creating it", error);
        let attributes = self.attributes(entry)?;
        let create = |store: &mut S, _: &mut _| store.create_file(parent, name, entry.mode).map_err(failed);
        let mut file = self.replacing(parent, name, create)?;
        fill(self, &mut file)?;
        self.store.finish_file(file, attributes, &mut self.skipped)
    }

    /// A link, a device or a FIFO.
    pub(crate) fn special(
        &mut self,
        entry: &TarEntry,
        parent: &Place<S::Dir>,
        name: &[u8],
        file: &SpecialFile<'_>,
    ) -> Result<(), UnpackError> {
        let attributes = self.attributes(entry)?;
        self.replacing(parent, name, |store, skipped| store.create_special(parent, name, file, &attributes, skipped))
    }

    /// A further name of a file that this layer made before. The file gets the attributes of this entry, as other
    /// programs do it.
    pub(crate) fn hard_link(
        &mut self,
        entry: &TarEntry,
        parent: &Place<S::Dir>,
        name: &[u8],
    ) -> Result<(), UnpackError> {
        let refuse = |problem: &str| UnpackError::refused(&entry.name, problem);
        let target = path::clean(&entry.link).map_err(|problem| refuse(&format!("hard link target: {problem}")))?;
        let (target_parent, target_name) = path::split(&target);
        if target_name.is_empty() {
            return Err(refuse("a hard link to the layer's root"));
        }
        let missing = || refuse("a hard link to something that this layer does not have (so far)");
        let target_parent = self.lookup.find(&mut self.store, target_parent).map_err(|error| match error {
            LookupError::Missing | LookupError::NotADir | LookupError::TooDeep => missing(),
            LookupError::Io(error) => UnpackError::disk("finding its target", error),
        })?;
        let target = self.store.find(&target_parent, target_name).ok().flatten().ok_or_else(missing)?;
        if target.is_dir() {
            return Err(refuse("a hard link to a directory"));
        }
        let existing = self.store.find(parent, name).ok().flatten();
        if existing.is_some_and(|existing| existing.inode == target.inode) {
            return self.describe_again(entry, target.kind, parent, name);
        }
        if target.names >= MAX_NAMES {
            return Err(refuse(&format!("a file with more than {MAX_NAMES} names")));
        }
        if path::is_within(&path::join(&target_parent.path, target_name), &path::join(&parent.path, name)) {
            return Err(refuse("a hard link that replaces its own target"));
        }
        let failed = |error| UnpackError::disk("creating it", error);
        self.replacing(parent, name, |store, _| {
            store.link((&target_parent, target_name), parent, name).map_err(failed)
        })?;
        self.describe_again(entry, target.kind, parent, name)
    }

    fn describe_again(
        &mut self,
        entry: &TarEntry,
        kind: EntryKind,
        parent: &Place<S::Dir>,
        name: &[u8],
    ) -> Result<(), UnpackError> {
        let attributes = self.attributes_of(entry, kind)?;
        self.store.describe_again(parent, name, attributes, &mut self.skipped)
    }

    fn make<R: BufRead>(
        &mut self,
        entry: &TarEntry,
        parent: &Place<S::Dir>,
        name: &[u8],
        archive: &mut TarReader<R>,
    ) -> Result<(), UnpackError> {
        let special = match entry.kind {
            EntryKind::File => {
                return self.file(entry, parent, name, |applier, file| applier.write(entry, file, archive));
            }
            EntryKind::Dir => return self.dir(entry, parent, name),
            EntryKind::HardLink => return self.hard_link(entry, parent, name),
            // This device means nothing else to overlayfs.
            EntryKind::Char if entry.device == (0, 0) => return self.remember_whiteout(parent, name.to_vec()),
            EntryKind::Symlink => SpecialFile::Symlink(checks::symlink_target(entry)?),
            EntryKind::Char => SpecialFile::CharDevice(checks::device(entry)?),
            EntryKind::Block => SpecialFile::BlockDevice(checks::device(entry)?),
            EntryKind::Fifo => SpecialFile::Fifo,
            EntryKind::GnuSparse
            | EntryKind::PaxLocal
            | EntryKind::PaxGlobal
            | EntryKind::LongName
            | EntryKind::LongLink => return Err(UnpackError::refused(b"", "an extension header out of place")),
        };
        self.special(entry, parent, name, &special)
    }

    fn check_entries(&self) -> Result<(), UnpackError> {
        checks::check_entries(self.entries.saturating_add(self.lookup.made() as u64), &self.limits)
    }

    fn attributes(&mut self, entry: &TarEntry) -> Result<Attributes, UnpackError> {
        self.attributes_of(entry, entry.kind)
    }

    /// What an entry says about a file of this kind, as far as the file system can hold it.
    fn attributes_of(&mut self, entry: &TarEntry, kind: EntryKind) -> Result<Attributes, UnpackError> {
        let mut attributes = Attributes::of(entry, kind, &self.limits, &mut self.skipped)?;
        for key in self.trial.filter(kind == EntryKind::Dir, &mut attributes.xattrs)? {
            self.skipped.add(&key);
        }
        attributes.mtime = self.trial.time(attributes.mtime)?;
        Ok(attributes)
    }

    fn remember_whiteout(&mut self, parent: &Place<S::Dir>, name: Vec<u8>) -> Result<(), UnpackError> {
        self.store.keep(parent.path.len() + name.len())?;
        self.whiteouts.push((parent.path.clone(), name));
        Ok(())
    }

    /// Runs `create`. If the name is taken, removes the earlier file and runs `create` again.
    fn replacing<T>(
        &mut self,
        parent: &Place<S::Dir>,
        name: &[u8],
        mut create: impl FnMut(&mut S, &mut SkippedXattrs) -> Result<Option<T>, UnpackError>,
    ) -> Result<T, UnpackError> {
        if let Some(made) = create(&mut self.store, &mut self.skipped)? {
            return Ok(made);
        }
        let failed = |error| UnpackError::disk("replacing an earlier entry", error);
        if self.store.remove(parent, name).map_err(failed)? {
            let removed = path::join(&parent.path, name);
            self.lookup.removed(&removed);
            path::remove_within(&mut self.opaque, &removed);
        }
        create(&mut self.store, &mut self.skipped)?
            .ok_or_else(|| UnpackError::disk("creating it", io::ErrorKind::AlreadyExists.into()))
    }

    /// Writes a file's data from the archive.
    fn write<R: BufRead>(
        &mut self,
        entry: &TarEntry,
        file: &mut S::File,
        archive: &mut TarReader<R>,
    ) -> Result<(), UnpackError> {
        let Some(sparse) = &entry.sparse else {
            return self.copy(file, 0, u64::MAX, archive).map(drop);
        };
        self.apparent = self.apparent.saturating_add(sparse.size);
        checks::check_apparent(self.apparent, &self.limits)?;
        self.store.set_size(file, sparse.size).map_err(|error| UnpackError::disk("writing it", error))?;
        for (offset, length) in &sparse.segments {
            if self.copy(file, *offset, *length, archive)? < *length {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
        Ok(())
    }

    /// Copies at most `length` bytes of the entry's data. Returns how many there were.
    fn copy<R: BufRead>(
        &mut self,
        file: &mut S::File,
        offset: u64,
        length: u64,
        archive: &mut TarReader<R>,
    ) -> Result<u64, UnpackError> {
        let mut copied = 0;
        while copied < length {
            let data = archive.data()?;
            let part = data.len().min(usize::try_from(length - copied).unwrap_or(usize::MAX));
            if part == 0 {
                break;
            }
            let written = self.store.write_at(file, offset + copied, &data[..part]);
            let written = written.map_err(|error| UnpackError::disk("writing it", error))?;
            archive.consume(written);
            copied += written as u64;
        }
        Ok(copied)
    }
}
