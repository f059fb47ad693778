//! The directory that a layer is unpacked into.
//!
//! Runs on one confined thread over a directory that no other process knows, so names cannot change under it. Every
//! path is resolved relative to the root's descriptor, and no call follows a link. Attributes of directories are set
//! last, so that no directory's own mode or default ACL gets in the way of filling it.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    rc::Rc,
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, makedev},
    io::Errno,
};

use super::attributes::{self, Owner};
use crate::{
    apply::{Attributes, Existing, LayerStore, LookupError, Place, SkippedXattrs, SpecialFile, Step, xattrs_size},
    error::UnpackError,
    limits::Limits,
    marks, path,
    tar::EntryKind,
};

/// Bytes of memory that a remembered path takes beside its text.
const EACH: usize = 64;
/// Bytes of memory that an extended attribute takes beside its name and value.
const EACH_XATTR: usize = 48;

/// The descriptor of a directory. It can be used for looking up names, but not for reading.
const LOOKUP: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
/// The descriptor of a directory that can be read and changed.
const OPEN_DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Stores a layer's files in a directory.
pub(crate) struct DirectoryStore {
    root: Rc<OwnedFd>,
    /// The owner of files that this process makes.
    owner: Owner,
    /// Attributes to be set, by canonical path.
    dirs: BTreeMap<Vec<u8>, DescribedDir>,
    /// Bytes of memory that were noted so far.
    kept: usize,
    kept_limit: usize,
    /// The file system refused a mark of overlayfs, see [`marks`].
    copy_only: bool,
}

/// What an entry said about a directory.
struct DescribedDir {
    inode: u64,
    attributes: Attributes,
}

impl DirectoryStore {
    /// Takes an empty directory.
    pub(crate) fn new(root: OwnedFd, limits: &Limits) -> Self {
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let kept_limit = limits.kept_bytes;
        Self { root: Rc::new(root), owner, dirs: BTreeMap::new(), kept: 0, kept_limit, copy_only: false }
    }

    /// Sets the attributes of directories. Returns whether overlayfs cannot read all marks, so that the layer can only
    /// be copied.
    pub(crate) fn finish(self, skipped: &mut SkippedXattrs) -> Result<bool, UnpackError> {
        // Deepest first: a directory that its own mode closes needs nothing inside it any more.
        for (path, described) in self.dirs.iter().rev() {
            self.finish_dir(path, described, skipped).map_err(|error| error.within(path))?;
        }
        Ok(self.copy_only)
    }

    fn finish_dir(
        &self,
        path: &[u8],
        described: &DescribedDir,
        skipped: &mut SkippedXattrs,
    ) -> Result<(), UnpackError> {
        let failed = |errno: Errno| UnpackError::disk("opening it", errno.into());
        let fd = match self.open(path, OPEN_DIR) {
            // A later entry replaced it.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
            result => result.map_err(failed)?,
        };
        let stat = rustix::fs::fstat(&fd).map_err(failed)?;
        if stat.st_ino == described.inode {
            attributes::set_on_dir(&fd, &stat, &described.attributes, skipped)?;
        }
        Ok(())
    }

    /// Opens the file at a clean path. Fails if the path leads through a link.
    fn open(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        let path = if path.is_empty() { b"." } else { path };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        rustix::fs::openat2(&*self.root, path, flags, Mode::empty(), resolve)
    }

    fn describe(&mut self, path: Vec<u8>, inode: u64, attributes: Attributes) -> Result<(), UnpackError> {
        let xattrs = xattrs_size(&attributes.xattrs) + EACH_XATTR * attributes.xattrs.len();
        self.keep(path.len() + xattrs)?;
        self.dirs.insert(path, DescribedDir { inode, attributes });
        Ok(())
    }
}

/// What a system call made; `None` if the name is taken.
fn unless_taken<T>(made: Result<T, Errno>) -> io::Result<Option<T>> {
    match made {
        Ok(made) => Ok(Some(made)),
        Err(Errno::EXIST) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

impl LayerStore for DirectoryStore {
    type Dir = Rc<OwnedFd>;
    type File = OwnedFd;

    const IMPLIED_BYTES: usize = 0;

    fn root(&self) -> Rc<OwnedFd> {
        Rc::clone(&self.root)
    }

    fn open_directly(&self, path: &[u8]) -> Result<Option<Rc<OwnedFd>>, LookupError> {
        match self.open(path, LOOKUP | OFlags::DIRECTORY) {
            Ok(fd) => Ok(Some(Rc::new(fd))),
            // A link leads to it, or it is missing.
            Err(Errno::LOOP | Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    fn step(&self, parent: &Rc<OwnedFd>, name: &[u8]) -> Result<Option<Step<Rc<OwnedFd>>>, LookupError> {
        let fd = match rustix::fs::openat(&**parent, name, LOOKUP | OFlags::NOFOLLOW, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            result => result?,
        };
        let stat = rustix::fs::fstat(&fd)?;
        Ok(Some(match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => Step::Dir(Rc::new(fd)),
            FileType::Symlink => Step::Symlink(rustix::fs::readlinkat(&fd, c"", Vec::new())?.into_bytes()),
            _ => Step::Other,
        }))
    }

    fn make_implied(&mut self, parent: &Rc<OwnedFd>, name: &[u8]) -> Result<Rc<OwnedFd>, LookupError> {
        rustix::fs::mkdirat(&**parent, name, Mode::from_raw_mode(0o755))?;
        let flags = LOOKUP | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        Ok(Rc::new(rustix::fs::openat(&**parent, name, flags, Mode::empty())?))
    }

    fn keep(&mut self, bytes: usize) -> Result<(), UnpackError> {
        self.kept += bytes + EACH;
        let limit = self.kept_limit;
        if self.kept > limit {
            let problem = format!("names and attributes of directories take more than {limit} bytes");
            return Err(UnpackError::refused(b"", problem));
        }
        Ok(())
    }

    #[allow(clippy::useless_conversion, reason = "the number of names is an u32 on aarch64")]
    fn find(&self, parent: &Place<Rc<OwnedFd>>, name: &[u8]) -> io::Result<Option<Existing>> {
        match rustix::fs::statat(&*parent.dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(Existing {
                kind: kind(FileType::from_raw_mode(stat.st_mode)),
                names: stat.st_nlink.into(),
                inode: (stat.st_dev, stat.st_ino),
            })),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    fn remove(&mut self, parent: &Place<Rc<OwnedFd>>, name: &[u8]) -> io::Result<bool> {
        let stat = rustix::fs::statat(&*parent.dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => remove_all(parent.dir.as_fd(), name)?,
            kind => {
                rustix::fs::unlinkat(&*parent.dir, name, AtFlags::empty())?;
                return Ok(kind == FileType::Symlink);
            }
        }
        let path = path::join(&parent.path, name);
        let (begin, end) = path::range_within(&path);
        self.dirs.remove(&path);
        let inside: Vec<_> = self.dirs.range(begin..end).map(|(path, _)| path.clone()).collect();
        for path in inside {
            self.dirs.remove(&path);
        }
        Ok(true)
    }

    fn create_dir(&mut self, parent: &Place<Rc<OwnedFd>>, name: &[u8]) -> io::Result<Option<()>> {
        unless_taken(rustix::fs::mkdirat(&*parent.dir, name, Mode::from_raw_mode(0o755)))
    }

    fn describe_dir(
        &mut self,
        parent: &Place<Rc<OwnedFd>>,
        name: &[u8],
        attributes: Attributes,
        _: &mut SkippedXattrs,
    ) -> Result<(), UnpackError> {
        let stat = rustix::fs::statat(&*parent.dir, name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|errno| UnpackError::disk("creating it", errno.into()))?;
        self.describe(path::join(&parent.path, name), stat.st_ino, attributes)
    }

    fn describe_root(&mut self, attributes: Attributes, _: &mut SkippedXattrs) -> Result<(), UnpackError> {
        let stat = rustix::fs::fstat(&*self.root).map_err(|errno| UnpackError::disk("opening it", errno.into()))?;
        self.describe(Vec::new(), stat.st_ino, attributes)
    }

    fn create_file(&mut self, parent: &Place<Rc<OwnedFd>>, name: &[u8], mode: u32) -> io::Result<Option<OwnedFd>> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        unless_taken(rustix::fs::openat(&*parent.dir, name, flags, Mode::from_raw_mode(mode & 0o777)))
    }

    fn set_size(&mut self, file: &mut OwnedFd, size: u64) -> io::Result<()> {
        Ok(rustix::fs::ftruncate(file, size)?)
    }

    fn write_at(&mut self, file: &mut OwnedFd, offset: u64, data: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::retry_on_intr(|| rustix::io::pwrite(&*file, data, offset))?)
    }

    fn finish_file(
        &mut self,
        file: OwnedFd,
        attributes: Attributes,
        skipped: &mut SkippedXattrs,
    ) -> Result<(), UnpackError> {
        attributes::set_on_file(&file, self.owner, &attributes, skipped)
    }

    fn create_special(
        &mut self,
        parent: &Place<Rc<OwnedFd>>,
        name: &[u8],
        file: &SpecialFile<'_>,
        attributes: &Attributes,
        skipped: &mut SkippedXattrs,
    ) -> Result<Option<()>, UnpackError> {
        let dir = &*parent.dir;
        let node = |kind, (major, minor)| {
            rustix::fs::mknodat(dir, name, kind, Mode::from_raw_mode(attributes.mode), makedev(major, minor))
        };
        let made = match *file {
            SpecialFile::Symlink(target) => rustix::fs::symlinkat(target, dir, name),
            SpecialFile::CharDevice(device) => node(FileType::CharacterDevice, device),
            SpecialFile::BlockDevice(device) => node(FileType::BlockDevice, device),
            SpecialFile::Fifo => node(FileType::Fifo, (0, 0)),
        };
        if unless_taken(made).map_err(|error| UnpackError::disk("creating it", error))?.is_none() {
            return Ok(None);
        }
        let is_symlink = matches!(file, SpecialFile::Symlink(_));
        attributes::set_on_special(dir, name, is_symlink, self.owner, attributes, skipped).map(Some)
    }

    fn link(
        &mut self,
        (from, target): (&Place<Rc<OwnedFd>>, &[u8]),
        parent: &Place<Rc<OwnedFd>>,
        name: &[u8],
    ) -> io::Result<Option<()>> {
        unless_taken(rustix::fs::linkat(&*from.dir, target, &*parent.dir, name, AtFlags::empty()))
    }

    fn describe_again(
        &mut self,
        parent: &Place<Rc<OwnedFd>>,
        name: &[u8],
        attributes: Attributes,
        skipped: &mut SkippedXattrs,
    ) -> Result<(), UnpackError> {
        attributes::set_again(&*parent.dir, name, &attributes, skipped)
    }

    fn create_whiteout(&mut self, parent: &Place<Rc<OwnedFd>>, name: &[u8]) -> io::Result<()> {
        self.copy_only |= !marks::hide(&*parent.dir, name)?;
        Ok(())
    }

    fn mark_opaque(&mut self, dir: &Place<Rc<OwnedFd>>) -> Result<(), UnpackError> {
        let fd = rustix::fs::openat(&*dir.dir, c".", OPEN_DIR, Mode::empty())
            .map_err(|errno| UnpackError::disk("opening it", errno.into()))?;
        let readable = marks::hide_all(&fd).map_err(|errno| UnpackError::disk("marking it opaque", errno.into()))?;
        self.copy_only |= !readable;
        Ok(())
    }
}

fn kind(file_type: FileType) -> EntryKind {
    match file_type {
        FileType::Directory => EntryKind::Dir,
        FileType::Symlink => EntryKind::Symlink,
        FileType::CharacterDevice => EntryKind::Char,
        FileType::BlockDevice => EntryKind::Block,
        FileType::Fifo => EntryKind::Fifo,
        _ => EntryKind::File,
    }
}

/// Removes a directory with all that is in it. It holds one descriptor per level; lookups bound the depth.
fn remove_all(parent: BorrowedFd<'_>, last: &[u8]) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(parent, last, flags, Mode::empty())?;
    for entry in rustix::fs::Dir::read_from(&fd)? {
        let entry = entry?;
        let child = entry.file_name();
        if child == c"." || child == c".." {
            continue;
        }
        match rustix::fs::unlinkat(&fd, child, AtFlags::empty()) {
            Err(Errno::ISDIR | Errno::PERM) => remove_all(fd.as_fd(), child.to_bytes())?,
            result => result?,
        }
    }
    rustix::fs::unlinkat(parent, last, AtFlags::REMOVEDIR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::Lookup;

    fn empty() -> (tempfile::TempDir, DirectoryStore, Lookup<Rc<OwnedFd>>) {
        let directory = tempfile::tempdir().unwrap();
        let root = std::fs::File::open(directory.path()).unwrap();
        let store = DirectoryStore::new(root.into(), &Limits::default());
        (directory, store, Lookup::new())
    }

    #[test]
    fn missing_parents_are_made_and_remembered() {
        let (directory, mut store, mut lookup) = empty();
        assert!(matches!(lookup.find(&mut store, b"a/b"), Err(LookupError::Missing)));
        assert_eq!(lookup.find_or_make(&mut store, b"a/b").unwrap().path, b"a/b");
        assert!(directory.path().join("a/b").is_dir());
        let implied: Vec<_> = lookup.implied().iter().map(Vec::as_slice).collect();
        assert_eq!(implied, [&b""[..], b"a", b"a/b"]);
        let root = lookup.find(&mut store, b"").unwrap();
        assert!(store.remove(&root, b"a").unwrap());
        lookup.removed(b"a");
        assert_eq!(lookup.implied().len(), 1);
        assert!(matches!(lookup.find(&mut store, b"a/b"), Err(LookupError::Missing)));
    }

    #[test]
    fn links_resolve_inside_the_root() {
        let (directory, mut store, mut lookup) = empty();
        let at = |name: &str| directory.path().join(name);
        std::fs::create_dir_all(at("usr/lib")).unwrap();
        std::fs::create_dir(at("etc")).unwrap();
        std::os::unix::fs::symlink("usr/lib", at("lib")).unwrap();
        std::os::unix::fs::symlink("/etc", at("absolute")).unwrap();
        std::os::unix::fs::symlink("../../../../etc", at("usr/up")).unwrap();
        std::os::unix::fs::symlink("circle", at("circle")).unwrap();
        std::os::unix::fs::symlink("/nowhere/at/all", at("dangling")).unwrap();
        std::fs::write(at("file"), "").unwrap();
        assert_eq!(lookup.find(&mut store, b"lib").unwrap().path, b"usr/lib");
        assert_eq!(lookup.find_or_make(&mut store, b"lib/new").unwrap().path, b"usr/lib/new");
        assert_eq!(lookup.find(&mut store, b"absolute").unwrap().path, b"etc");
        assert_eq!(lookup.find(&mut store, b"usr/up").unwrap().path, b"etc");
        assert_eq!(lookup.find_or_make(&mut store, b"dangling/x").unwrap().path, b"nowhere/at/all/x");
        // Found by fuzzing: what a link names is made, but no whiteout can be.
        std::os::unix::fs::symlink("etc/.wh.gone", at("whiteout")).unwrap();
        for bad in [&b"circle"[..], b"file", b"file/x", b"whiteout/x"] {
            assert!(matches!(lookup.find_or_make(&mut store, bad), Err(LookupError::NotADir)), "{bad:?}");
        }
    }

    #[test]
    fn depth_is_counted_where_links_lead() {
        let (directory, mut store, mut lookup) = empty();
        let deep = vec!["d"; 512].join("/");
        assert!(lookup.find_or_make(&mut store, deep.as_bytes()).is_ok());
        assert!(matches!(lookup.find_or_make(&mut store, format!("{deep}/d").as_bytes()), Err(LookupError::TooDeep)));
        std::os::unix::fs::symlink(&deep, directory.path().join("link")).unwrap();
        assert!(matches!(lookup.find_or_make(&mut store, b"link/d"), Err(LookupError::TooDeep)));
        // A link that goes up and down all the time is not deep, but has too many components.
        std::os::unix::fs::symlink("d/../".repeat(1300), directory.path().join("long")).unwrap_err();
        std::os::unix::fs::symlink("d/../".repeat(800), directory.path().join("long")).unwrap();
        assert!(matches!(lookup.find_or_make(&mut store, b"long/long/long"), Err(LookupError::TooDeep)));
        let names = format!("{}/{}", "n".repeat(255), "m".repeat(255));
        let wide = vec![names; 9].join("/");
        assert!(matches!(
            lookup.find_or_make(&mut store, wide.as_bytes()),
            Err(LookupError::TooDeep | LookupError::Io(_))
        ));
    }
}
