//! The attributes of directories that a layer needs but does not describe.
//!
//! A layer that holds `tmp/x` but no entry for `tmp` gets a made-up `tmp`, and overlay would show that one's mode (0755) instead of the
//! true one of a lower layer (1777). Layers are shared between images and unpacked side by side, so the layer itself cannot hold
//! the answer. Instead a tiny layer of directories only, made once per chain of layers, is stacked right above it. It is made only
//! where it changes something, which is rare.

use std::{
    cell::OnceCell,
    collections::{BTreeMap, HashMap},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use ::layer::marks;
use rustix::{
    fs::{AtFlags, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags},
    io::Errno,
};

use super::{
    layer::{self, LayerMeta},
    layout::{Layout, boot_id, open_directory},
    staging::Staging,
};
use crate::{commit, digest::Digest, error::StoreError};

/// What overlay shows of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Attributes {
    mode: u32,
    uid: u32,
    gid: u32,
    mtime: (i64, i64),
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Attributes {
    /// What a made-up directory has anyway.
    fn is_default(&self) -> bool {
        (self.mode, self.uid, self.gid) == (0o755, 0, 0) && self.xattrs.is_empty()
    }
}

/// What a layer has at a path.
enum Found {
    /// A directory; and whether something on the way to it hides lower layers.
    Dir { fd: OwnedFd, stat: Stat, cut: bool },
    /// Nothing, and lower layers show through.
    Nothing,
    /// Something that hides lower layers.
    Hidden,
}

/// Which chains of layers need a fix-up, as far as it was found out. Layers never change, so neither does this.
#[derive(Debug, Default)]
pub(crate) struct Known(Mutex<HashMap<Digest, bool>>);

impl Known {
    fn get(&self, key: &Digest) -> Option<bool> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key).copied()
    }

    fn learn(&self, key: &Digest, needed: bool) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone(), needed);
    }
}

/// A layer of a chain. Its files are opened when they are looked at, and once.
struct Link<'a> {
    path: PathBuf,
    meta: &'a LayerMeta,
    files: OnceCell<OwnedFd>,
}

impl<'a> Link<'a> {
    fn of(layout: &Layout, meta: &'a LayerMeta) -> Self {
        Self { path: layout.layer(&meta.diff_id), meta, files: OnceCell::new() }
    }

    fn files(&self) -> Result<&OwnedFd, StoreError> {
        if let Some(files) = self.files.get() {
            return Ok(files);
        }
        let files = layer::open(&self.path)?;
        Ok(self.files.get_or_init(|| files))
    }

    fn find(&self, path: &[u8]) -> Result<Found, StoreError> {
        find(self.files()?, path).map_err(StoreError::io("examining", &self.path))
    }

    fn attributes(&self, fd: &OwnedFd, stat: &Stat) -> Result<Attributes, StoreError> {
        attributes(fd, stat).map_err(StoreError::io("examining", &self.path))
    }
}

/// Makes the fix-up for the topmost layer of `chain` (bottom first) if it needs one. `Ok(None)`: it does not.
pub(crate) fn make(
    layout: &Layout,
    staging: &Staging,
    chain: &[LayerMeta],
    known: &Known,
) -> Result<Option<Digest>, StoreError> {
    let Some((top, below)) = chain.split_last() else { return Ok(None) };
    if top.implicit_dirs.is_empty() || below.is_empty() {
        return Ok(None);
    }
    let ids: Vec<&str> = chain.iter().map(|meta| meta.diff_id.as_str()).collect();
    // Nothing says whether it survived a power cut, so one of another boot is never used: nobody leases it, and the sweep gets it.
    let key = Digest::sha256(format!("fixup 1\n{}\n{}", boot_id()?, ids.join("\n")).as_bytes());
    let target = layout.fixup(&key);
    let is_there = || target.join(layer::DIRECTORY).is_dir();
    match known.get(&key) {
        Some(false) => return Ok(None),
        Some(true) if is_there() => return Ok(Some(key)),
        _ => {}
    }
    let top = Link::of(layout, top);
    let below: Vec<Link<'_>> = below.iter().map(|meta| Link::of(layout, meta)).collect();
    let wrong = wrong_dirs(&top, &below)?;
    if !wrong.is_empty() && !is_there() {
        let staged = staging.layer()?;
        build(&staged.fs(), &top, &wrong)?;
        // Already there means done: the same chain makes the same directories.
        commit::rename_directory(staged.path(), &target)?;
    }
    known.learn(&key, !wrong.is_empty());
    Ok((!wrong.is_empty()).then_some(key))
}

/// The made-up directories of `top` whose true attributes differ, with these.
fn wrong_dirs(top: &Link<'_>, below: &[Link<'_>]) -> Result<BTreeMap<Vec<u8>, Attributes>, StoreError> {
    let mut wrong = BTreeMap::new();
    for implicit in &top.meta.implicit_dirs {
        let path = &implicit.0;
        match top.find(path)? {
            Found::Dir { cut: false, .. } => {}
            _ => continue,
        }
        if let Some(attributes) = inherited(below, path)?
            && !attributes.is_default()
        {
            wrong.insert(path.clone(), attributes);
        }
    }
    Ok(wrong)
}

/// The attributes that a directory has in the stack of `below` (bottom first).
fn inherited(below: &[Link<'_>], path: &[u8]) -> Result<Option<Attributes>, StoreError> {
    for layer in below.iter().rev() {
        let meta = layer.meta;
        match layer.find(path)? {
            Found::Nothing => {}
            Found::Hidden => return Ok(None),
            Found::Dir { fd, stat, cut } => {
                // They are written down in order.
                if meta.implicit_dirs.binary_search_by(|implicit| implicit.0.as_slice().cmp(path)).is_err() {
                    return layer.attributes(&fd, &stat).map(Some);
                }
                if cut || meta.opaque_root {
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

/// Looks a path up in one layer as overlay does: link by link is not followed, marks on the way are noted.
fn find(files: &OwnedFd, path: &[u8]) -> Result<Found, Errno> {
    let mut fd = open_dir(files, b".")?;
    let mut cut = false;
    for component in path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
        cut |= marks::hides_all(&fd)?;
        fd = match open_dir(&fd, component) {
            Ok(next) => next,
            Err(Errno::NOENT) if cut => return Ok(Found::Hidden),
            Err(Errno::NOENT) => return Ok(Found::Nothing),
            // A file, a link or a whiteout.
            Err(Errno::NOTDIR | Errno::LOOP) => return Ok(Found::Hidden),
            Err(errno) => return Err(errno),
        };
    }
    let stat = rustix::fs::fstat(&fd)?;
    Ok(Found::Dir { fd, stat, cut })
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
        // Only what images may set; overlay's own marks say something about the layer, not about the directory.
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

/// Makes the directories in `fixup`. Those on the way that are right as they are get the attributes of the layer's own ones.
fn build(fixup: &Path, own: &Link<'_>, wrong: &BTreeMap<Vec<u8>, Attributes>) -> Result<(), StoreError> {
    let mut all: BTreeMap<Vec<u8>, Attributes> = wrong.clone();
    for path in wrong.keys() {
        for (at, _) in path.iter().enumerate().filter(|(_, byte)| **byte == b'/') {
            add_own(&mut all, own, &path[..at])?;
        }
        add_own(&mut all, own, b"")?;
    }
    let root = open_directory(fixup)?;
    let io = |path: &[u8]| {
        let path = fixup.join(String::from_utf8_lossy(path).as_ref());
        StoreError::io::<Errno>("creating", path)
    };
    // Parents sort before their children.
    for path in all.keys().filter(|path| !path.is_empty()) {
        rustix::fs::mkdirat(&root, &path[..], Mode::from_raw_mode(0o755)).map_err(io(path))?;
    }
    for (path, attributes) in all.iter().rev() {
        failpoint::at("fixup-before-attributes");
        let name: &[u8] = if path.is_empty() { b"." } else { path };
        let dir = open_dir(&root, name).map_err(io(path))?;
        apply(&dir, attributes).map_err(io(path))?;
    }
    Ok(())
}

fn add_own(all: &mut BTreeMap<Vec<u8>, Attributes>, own: &Link<'_>, path: &[u8]) -> Result<(), StoreError> {
    if all.contains_key(path) {
        return Ok(());
    }
    if let Found::Dir { fd, stat, .. } = own.find(path)? {
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
