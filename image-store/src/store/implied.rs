//! The layer of implied directories: the attributes of directories that layers need but do not describe.
//!
//! A layer that contains `tmp/x` but no entry for `tmp` implies the directory `tmp`. The unpacker makes it with mode
//! 0755, and overlay would show this mode instead of the mode of a lower layer (1777). The layer itself cannot hold the
//! right attributes: layers are shared between images and unpacked in parallel. Therefore a small layer that contains
//! only directories is made once per image, and stacked on top of all layers. It is made only if an attribute differs,
//! which is rare. Layers are looked at without being mounted, each at most once per directory.

use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet, HashMap},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use layer::{Digest, ImageReader, marks};
use rustix::{
    fs::{AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags},
    io::Errno,
};

use super::{
    layers::{self, LayerFiles, LayerMeta},
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
    /// A directory. `opaque`: it, or a directory above it, hides lower layers.
    Directory { attributes: Attributes, opaque: bool },
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
    files: OnceCell<LayerFiles>,
}

impl<'a> ChainLayer<'a> {
    fn of((path, meta): &'a (PathBuf, LayerMeta)) -> Self {
        Self { path: path.clone(), meta, files: OnceCell::new() }
    }

    fn files(&self) -> Result<&LayerFiles, StoreError> {
        if let Some(files) = self.files.get() {
            return Ok(files);
        }
        let files = LayerFiles::of(&self.path)?;
        Ok(self.files.get_or_init(|| files))
    }

    /// Looks a path up as overlay does: links are not followed.
    fn lookup(&self, path: &[u8]) -> Result<Lookup, StoreError> {
        match self.files()? {
            LayerFiles::Directory(files) => in_directory(files, path).map_err(StoreError::io("examining", &self.path)),
            LayerFiles::Image(image) => in_image(image, path).map_err(StoreError::io("examining", &self.path)),
        }
    }

    /// Whether the layer has this directory without describing it.
    fn implies(&self, path: &[u8]) -> bool {
        // The paths are sorted.
        self.meta.implicit_dirs.binary_search_by(|implicit| implicit.0.as_slice().cmp(path)).is_ok()
    }
}

/// Makes the layer of implied directories for a chain of layers, each with its directory (bottom first, nothing hides
/// the lowest one), and returns its key. `Ok(None)`: the chain needs none.
pub(crate) fn make<'a>(
    layout: &Layout,
    staging: impl FnOnce() -> Result<&'a Staging, StoreError>,
    chain: &[(PathBuf, LayerMeta)],
    cache: &Cache,
) -> Result<Option<Digest>, StoreError> {
    // The content of a partial layer is known by its directory, not by the digest that it will have.
    let id = |(path, meta): &(PathBuf, LayerMeta)| match *path == layout.layer(&meta.diff_id) {
        true => meta.diff_id.to_string(),
        false => path.strip_prefix(layout.root()).unwrap_or(path).display().to_string(),
    };
    let ids: Vec<String> = chain.iter().map(id).collect();
    // No record says whether it survived a power cut, so the key contains the boot: one of another boot is never used,
    // and the next sweep removes it. Version 1 was stacked above the topmost layer of its chain.
    let key = Digest::sha256(format!("fixup 2\n{}\n{}", boot_id()?, ids.join("\n")).as_bytes());
    let target = layout.implied(&key);
    let exists = || target.join(layers::DIRECTORY).is_dir();
    match cache.get(&key) {
        Some(false) => return Ok(None),
        Some(true) if exists() => return Ok(Some(key)),
        _ => {}
    }
    let chain: Vec<ChainLayer<'_>> = chain.iter().map(ChainLayer::of).collect();
    let wrong = wrong_attributes(&chain)?;
    if !wrong.is_empty() && !exists() {
        let staged = staging()?.layer()?;
        build(&staged.fs(), &with_parents(&chain, wrong.clone())?)?;
        // If it exists already, it is equal: the same chain makes the same directories.
        files::rename_directory(staged.path(), &target)?;
    }
    cache.put(&key, !wrong.is_empty());
    Ok((!wrong.is_empty()).then_some(key))
}

/// The directories that overlay would show with the attributes of an implied directory, and their right attributes.
fn wrong_attributes(chain: &[ChainLayer<'_>]) -> Result<BTreeMap<Vec<u8>, Attributes>, StoreError> {
    let implied: BTreeSet<&[u8]> =
        chain.iter().flat_map(|layer| &layer.meta.implicit_dirs).map(|implicit| implicit.0.as_slice()).collect();
    let mut wrong = BTreeMap::new();
    for path in implied {
        if let Some((attributes, shown)) = described(chain, path)?
            && attributes != shown
            && !attributes.is_default()
        {
            wrong.insert(path.to_vec(), attributes);
        }
    }
    Ok(wrong)
}

/// The attributes of a directory of the chain as the topmost layer that describes it says, and those that overlay
/// shows. `None`: no layer describes it, or there is no such directory.
fn described(chain: &[ChainLayer<'_>], path: &[u8]) -> Result<Option<(Attributes, Attributes)>, StoreError> {
    let mut shown = None;
    for layer in chain.iter().rev() {
        match layer.lookup(path)? {
            Lookup::Absent => {}
            Lookup::Hidden => return Ok(None),
            Lookup::Directory { attributes, opaque } => {
                let shown = shown.get_or_insert_with(|| attributes.clone());
                if !layer.implies(path) {
                    return Ok(Some((attributes, shown.clone())));
                }
                if opaque {
                    return Ok(None);
                }
            }
        }
    }
    Ok(None)
}

/// Adds the parents of directories, as overlay shows them.
fn with_parents(
    chain: &[ChainLayer<'_>],
    mut all: BTreeMap<Vec<u8>, Attributes>,
) -> Result<BTreeMap<Vec<u8>, Attributes>, StoreError> {
    let parents: BTreeSet<Vec<u8>> = all.keys().flat_map(|path| parents(path)).collect();
    for path in parents {
        if all.contains_key(&path) {
            continue;
        }
        for layer in chain.iter().rev() {
            if let Lookup::Directory { attributes, .. } = layer.lookup(&path)? {
                all.insert(path, attributes);
                break;
            }
        }
    }
    Ok(all)
}

/// The paths of all directories above a path, the root included.
fn parents(path: &[u8]) -> Vec<Vec<u8>> {
    let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    [Vec::new()].into_iter().chain(slashes.map(|(at, _)| path[..at].to_vec())).collect()
}

fn in_directory(files: &OwnedFd, path: &[u8]) -> Result<Lookup, Errno> {
    let mut fd = open_dir(files, b".")?;
    let mut opaque = false;
    for component in path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
        let hides = marks::hides_all(&fd)?;
        fd = match open_dir(&fd, component) {
            Ok(next) => next,
            Err(Errno::NOENT) if opaque || hides => return Ok(Lookup::Hidden),
            Err(Errno::NOENT) => return Ok(Lookup::Absent),
            // A file, a link or a whiteout.
            Err(Errno::NOTDIR | Errno::LOOP) => return Ok(Lookup::Hidden),
            Err(errno) => return Err(errno),
        };
        opaque |= hides;
    }
    let attributes = attributes(&fd)?;
    Ok(Lookup::Directory { attributes, opaque })
}

fn in_image(image: &ImageReader, path: &[u8]) -> std::io::Result<Lookup> {
    let mut file = image.root()?;
    let mut opaque = false;
    for component in path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
        opaque |= file.xattrs.iter().any(|(key, value)| key == marks::OPAQUE.to_bytes() && value == b"y");
        file = match image.child(&file, component)? {
            Some(next) if next.is_dir() => next,
            None if !opaque => return Ok(Lookup::Absent),
            None | Some(_) => return Ok(Lookup::Hidden),
        };
    }
    let mut xattrs: Vec<_> = file.xattrs.into_iter().filter(|(key, _)| is_inherited(key)).collect();
    xattrs.sort();
    let mtime = (file.mtime.0, file.mtime.1.into());
    let attributes = Attributes { mode: file.mode & 0o7777, uid: file.uid, gid: file.gid, mtime, xattrs };
    Ok(Lookup::Directory { attributes, opaque })
}

/// Whether a directory has this extended attribute from its image. The marks of overlay describe the layer.
fn is_inherited(key: &[u8]) -> bool {
    !key.starts_with(b"trusted.") && key != b"security.selinux"
}

fn open_dir(at: impl std::os::fd::AsFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(at, name, flags, Mode::empty())
}

fn attributes(fd: &OwnedFd) -> Result<Attributes, Errno> {
    let stat = rustix::fs::fstat(fd)?;
    let mut names = vec![0u8; 64 << 10];
    let length = match rustix::fs::flistxattr(fd, &mut names[..]) {
        Err(Errno::OPNOTSUPP) => 0,
        result => result?,
    };
    let mut xattrs = Vec::new();
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty() && is_inherited(name)) {
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

/// Makes these directories below `target`. Every parent is among them.
fn build(target: &Path, all: &BTreeMap<Vec<u8>, Attributes>) -> Result<(), StoreError> {
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
