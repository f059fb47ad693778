//! Layers of implied directories: the attributes of directories that a layer needs but does not describe.
//!
//! A layer that contains `tmp/x` but no entry for `tmp` implies the directory `tmp`. The unpacker makes it with mode
//! 0755, and overlay would show this mode instead of the mode of a lower layer (1777). The layer itself cannot hold the
//! right attributes: layers are shared between images and unpacked in parallel. Therefore a small layer that contains
//! only directories is made once per chain of layers, and stacked directly above the layer. It is made only if an
//! attribute differs, which is rare.

use std::{
    cell::OnceCell,
    collections::{BTreeMap, HashMap},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use layer::{Digest, marks};
use rustix::{
    fs::{AtFlags, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags},
    io::Errno,
};

use super::{
    layers::{self, LayerMeta},
    layout::{Layout, boot_id, open_directory},
    staging::Staging,
};
use crate::{error::StoreError, files};

/// The attributes of a directory that overlay shows.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Attributes {
    mode: u32,
    uid: u32,
    gid: u32,
    mtime: (i64, i64),
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Attributes {
    /// Whether these are the attributes that the unpacker gives an implied directory.
    fn is_default(&self) -> bool {
        (self.mode, self.uid, self.gid) == (0o755, 0, 0) && self.xattrs.is_empty()
    }
}

/// What a layer contributes at a path.
enum Lookup {
    /// A directory. `opaque`: a directory above it hides lower layers.
    Directory { fd: OwnedFd, stat: Stat, opaque: bool },
    /// Nothing: lower layers show through.
    Absent,
    /// A whiteout, a file or an opaque directory: lower layers are hidden.
    Hidden,
}

/// Caches which chains of layers need a layer of implied directories. Layers never change, so the entries stay valid.
#[derive(Debug, Default)]
pub(crate) struct Cache(Mutex<HashMap<Digest, bool>>);

impl Cache {
    fn get(&self, key: &Digest) -> Option<bool> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key).copied()
    }

    fn put(&self, key: &Digest, needed: bool) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone(), needed);
    }
}

/// A layer of a chain. Its files are opened once, at the first lookup.
struct ChainLayer<'a> {
    path: PathBuf,
    meta: &'a LayerMeta,
    files: OnceCell<OwnedFd>,
}

impl<'a> ChainLayer<'a> {
    fn of(layout: &Layout, meta: &'a LayerMeta) -> Self {
        Self { path: layout.layer(&meta.diff_id), meta, files: OnceCell::new() }
    }

    fn files(&self) -> Result<&OwnedFd, StoreError> {
        if let Some(files) = self.files.get() {
            return Ok(files);
        }
        let files = layers::open(&self.path)?;
        Ok(self.files.get_or_init(|| files))
    }

    fn lookup(&self, path: &[u8]) -> Result<Lookup, StoreError> {
        lookup(self.files()?, path).map_err(StoreError::io("examining", &self.path))
    }

    fn attributes(&self, fd: &OwnedFd, stat: &Stat) -> Result<Attributes, StoreError> {
        attributes(fd, stat).map_err(StoreError::io("examining", &self.path))
    }
}

/// Makes the layer of implied directories for the topmost layer of `chain` (bottom first), and returns its key.
/// `Ok(None)`: the chain needs none.
pub(crate) fn make(
    layout: &Layout,
    staging: &Staging,
    chain: &[LayerMeta],
    cache: &Cache,
) -> Result<Option<Digest>, StoreError> {
    let Some((top, below)) = chain.split_last() else { return Ok(None) };
    if top.implicit_dirs.is_empty() || below.is_empty() {
        return Ok(None);
    }
    let ids: Vec<&str> = chain.iter().map(|meta| meta.diff_id.as_str()).collect();
    // No record says whether it survived a power cut, so the key contains the boot: one of another boot is never used,
    // and the next sweep removes it.
    let key = Digest::sha256(format!("fixup 1\n{}\n{}", boot_id()?, ids.join("\n")).as_bytes());
    let target = layout.implied(&key);
    let exists = || target.join(layers::DIRECTORY).is_dir();
    match cache.get(&key) {
        Some(false) => return Ok(None),
        Some(true) if exists() => return Ok(Some(key)),
        _ => {}
    }
    let top = ChainLayer::of(layout, top);
    let below: Vec<ChainLayer<'_>> = below.iter().map(|meta| ChainLayer::of(layout, meta)).collect();
    let wrong = wrong_attributes(&top, &below)?;
    if !wrong.is_empty() && !exists() {
        let staged = staging.layer()?;
        build(&staged.fs(), &top, &wrong)?;
        // If it exists already, it is equal: the same chain makes the same directories.
        files::rename_directory(staged.path(), &target)?;
    }
    cache.put(&key, !wrong.is_empty());
    Ok((!wrong.is_empty()).then_some(key))
}

/// The implied directories of `top` with wrong attributes, and their right attributes.
fn wrong_attributes(
    top: &ChainLayer<'_>,
    below: &[ChainLayer<'_>],
) -> Result<BTreeMap<Vec<u8>, Attributes>, StoreError> {
    let mut wrong = BTreeMap::new();
    for implicit in &top.meta.implicit_dirs {
        let path = &implicit.0;
        let Lookup::Directory { opaque: false, .. } = top.lookup(path)? else { continue };
        if let Some(attributes) = inherited(below, path)?
            && !attributes.is_default()
        {
            wrong.insert(path.clone(), attributes);
        }
    }
    Ok(wrong)
}

/// The attributes that a directory has in the stack of `below` (bottom first).
fn inherited(below: &[ChainLayer<'_>], path: &[u8]) -> Result<Option<Attributes>, StoreError> {
    for layer in below.iter().rev() {
        let meta = layer.meta;
        match layer.lookup(path)? {
            Lookup::Absent => {}
            Lookup::Hidden => return Ok(None),
            Lookup::Directory { fd, stat, opaque } => {
                // The paths are sorted.
                if meta.implicit_dirs.binary_search_by(|implicit| implicit.0.as_slice().cmp(path)).is_err() {
                    return layer.attributes(&fd, &stat).map(Some);
                }
                if opaque || meta.opaque_root {
                    return Ok(None);
                }
            }
        }
        if meta.opaque_root {
            return Ok(None);
        }
    }
    Ok(None)
}

/// Looks a path up in one layer as overlay does: links are not followed, opaque directories above the path are noted.
fn lookup(files: &OwnedFd, path: &[u8]) -> Result<Lookup, Errno> {
    let mut fd = open_dir(files, b".")?;
    let mut opaque = false;
    for component in path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
        opaque |= marks::hides_all(&fd)?;
        fd = match open_dir(&fd, component) {
            Ok(next) => next,
            Err(Errno::NOENT) if opaque => return Ok(Lookup::Hidden),
            Err(Errno::NOENT) => return Ok(Lookup::Absent),
            // A file, a link or a whiteout.
            Err(Errno::NOTDIR | Errno::LOOP) => return Ok(Lookup::Hidden),
            Err(errno) => return Err(errno),
        };
    }
    let stat = rustix::fs::fstat(&fd)?;
    Ok(Lookup::Directory { fd, stat, opaque })
}

fn open_dir(at: impl std::os::fd::AsFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(at, name, flags, Mode::empty())
}

fn attributes(fd: &OwnedFd, stat: &Stat) -> Result<Attributes, Errno> {
    let mut names = vec![0u8; 64 << 10];
    let length = match rustix::fs::flistxattr(fd, &mut names[..]) {
        Err(Errno::OPNOTSUPP) => 0,
        result => result?,
    };
    let mut xattrs = Vec::new();
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        // Images cannot set these. The marks of overlay describe the layer, not the directory.
        if name.starts_with(b"trusted.") || name == b"security.selinux" {
            continue;
        }
        let mut value = vec![0u8; 64 << 10];
        let length = rustix::fs::fgetxattr(fd, name, &mut value[..])?;
        value.truncate(length);
        xattrs.push((name.to_vec(), value));
    }
    xattrs.sort();
    Ok(Attributes {
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime: (stat.st_mtime, stat.st_mtime_nsec.cast_signed()),
        xattrs,
    })
}

/// Makes the directories below `target`. Parents with right attributes get the attributes that they have in the layer
/// itself.
fn build(target: &Path, own: &ChainLayer<'_>, wrong: &BTreeMap<Vec<u8>, Attributes>) -> Result<(), StoreError> {
    let mut all: BTreeMap<Vec<u8>, Attributes> = wrong.clone();
    for path in wrong.keys() {
        for (at, _) in path.iter().enumerate().filter(|(_, byte)| **byte == b'/') {
            add_own(&mut all, own, &path[..at])?;
        }
        add_own(&mut all, own, b"")?;
    }
    let root = open_directory(target)?;
    let io = |path: &[u8]| {
        let path = target.join(String::from_utf8_lossy(path).as_ref());
        StoreError::io::<Errno>("creating", path)
    };
    // Parents sort before their children.
    for path in all.keys().filter(|path| !path.is_empty()) {
        rustix::fs::mkdirat(&root, &path[..], Mode::from_raw_mode(0o755)).map_err(io(path))?;
    }
    for (path, attributes) in all.iter().rev() {
        failpoint::at("implied-before-attributes");
        let name: &[u8] = if path.is_empty() { b"." } else { path };
        let dir = open_dir(&root, name).map_err(io(path))?;
        apply(&dir, attributes).map_err(io(path))?;
    }
    Ok(())
}

fn add_own(all: &mut BTreeMap<Vec<u8>, Attributes>, own: &ChainLayer<'_>, path: &[u8]) -> Result<(), StoreError> {
    if all.contains_key(path) {
        return Ok(());
    }
    if let Lookup::Directory { fd, stat, .. } = own.lookup(path)? {
        all.insert(path.to_vec(), own.attributes(&fd, &stat)?);
    }
    Ok(())
}

fn apply(dir: &OwnedFd, wanted: &Attributes) -> Result<(), Errno> {
    let (uid, gid) = (Uid::from_raw(wanted.uid), Gid::from_raw(wanted.gid));
    rustix::fs::chownat(dir, c"", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
    rustix::fs::fchmod(dir, Mode::from_raw_mode(wanted.mode))?;
    for (name, value) in &wanted.xattrs {
        rustix::fs::fsetxattr(dir, &name[..], value, XattrFlags::empty())?;
    }
    let time = Timespec { tv_sec: wanted.mtime.0, tv_nsec: wanted.mtime.1 };
    rustix::fs::futimens(dir, &Timestamps { last_access: time, last_modification: time })
}
