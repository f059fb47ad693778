//! Tar entries → files, in overlay form.
//!
//! Runs on one confined thread over a directory that nobody else knows, so names cannot change under it. Attributes of directories and
//! all whiteouts are applied at the end: a later entry of the same layer beats its whiteout, a directory that was removed and made
//! again hides what lower layers have in it, and no directory's own mode or default ACL gets in the way of filling it.

mod finish;
pub(crate) mod tree;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, BufRead},
    os::fd::OwnedFd,
    rc::Rc,
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags},
    io::Errno,
};

use tree::{Dir, LookupError, Tree, is_within, take_within};

use crate::{
    attributes::{self, Attributes, NotSet},
    checks::{self, classify},
    error::UnpackError,
    limits::Limits,
    name::{self, Target},
    tar::{
        archive::{Archive, Entry},
        header::Kind,
    },
};

/// Applies the entries of one layer.
pub(crate) struct Applier {
    pub(crate) tree: Tree,
    pub(crate) limits: Limits,
    owner: (u32, u32),
    /// By canonical path; the last entry for a directory counts.
    pub(crate) dirs: BTreeMap<Vec<u8>, DirRecord>,
    pub(crate) whiteouts: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) opaque: BTreeSet<Vec<u8>>,
    pub(crate) entries: u64,
    /// A mark is not one that overlayfs reads.
    pub(crate) copy_only: bool,
    /// Sizes of sparse files as they appear.
    pub(crate) apparent: u64,
    /// Bytes that `dirs`, `whiteouts` and `opaque` hold, or held once.
    kept: usize,
    pub(crate) not_set: NotSet,
}

/// What the layer looks like now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// Entries of the archive.
    pub entries: u64,
    /// Implied directories.
    pub implicit: Vec<Vec<u8>>,
    /// The layer hides everything below it. The kernel ignores the mark on a layer's root.
    pub opaque_root: bool,
    /// Extended attributes that were left out.
    pub not_set: NotSet,
    /// The file system refused overlayfs's marks, see [`crate::marks`].
    pub copy_only: bool,
    /// Its files are in an image, not in a directory.
    pub image: bool,
}

/// What an entry said about a directory.
pub(crate) struct DirRecord {
    pub(crate) inode: u64,
    pub(crate) attributes: Attributes,
}

impl Applier {
    pub(crate) fn new(root: OwnedFd, limits: Limits) -> Self {
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Self {
            tree: Tree::new(root),
            limits,
            owner,
            dirs: BTreeMap::new(),
            whiteouts: Vec::new(),
            opaque: BTreeSet::new(),
            entries: 0,
            copy_only: false,
            apparent: 0,
            kept: 0,
            not_set: NotSet::default(),
        }
    }

    /// Applies one entry, reading its data from the archive.
    pub(crate) fn apply<R: BufRead>(&mut self, entry: &Entry, archive: &mut Archive<R>) -> Result<(), UnpackError> {
        self.entries += 1;
        self.check_amount()?;
        match classify(entry)? {
            Target::Ignored => Ok(()),
            Target::Root => self.root(entry),
            Target::Opaque { dir } => {
                let dir = self.parent(&dir, &entry.name)?;
                self.keep(dir.path.len())?;
                self.opaque.insert(dir.path.clone());
                Ok(())
            }
            Target::Whiteout { parent, name } => {
                let parent = self.parent(&parent, &entry.name)?;
                self.remember_whiteout(&parent, name)
            }
            Target::Entry { parent, name } => {
                let parent = self.parent(&parent, &entry.name)?;
                self.make(entry, &parent, &name, archive)
            }
        }
    }

    /// Directories that no entry describes take an inode and memory like any other.
    fn check_amount(&self) -> Result<(), UnpackError> {
        checks::check_entries(self.entries.saturating_add(self.tree.made() as u64), &self.limits)
    }

    fn keep(&mut self, bytes: usize) -> Result<(), UnpackError> {
        const EACH: usize = 64;
        self.kept += bytes + EACH;
        let limit = self.limits.kept_bytes;
        if self.kept > limit {
            return Err(UnpackError::refused(
                b"",
                format!("names and attributes of directories take more than {limit} bytes"),
            ));
        }
        Ok(())
    }

    pub(crate) fn parent(&mut self, path: &[u8], entry: &[u8]) -> Result<Rc<Dir>, UnpackError> {
        let made = self.tree.made();
        let parent = self.tree.dir(path, true).map_err(|error| checks::no_parent(entry, error))?;
        let new = self.tree.made() - made;
        if new > 0 {
            self.check_amount()?;
            self.keep(new * parent.path.len())?;
        }
        Ok(parent)
    }

    pub(crate) fn root(&mut self, entry: &Entry) -> Result<(), UnpackError> {
        self.tree.made_explicit(b"");
        let (_, stat) = self.tree.open_dir(b"").map_err(|error| lookup(&entry.name, error))?;
        self.remember(Vec::new(), stat.st_ino, entry)
    }

    fn remember(&mut self, path: Vec<u8>, inode: u64, entry: &Entry) -> Result<(), UnpackError> {
        let attributes = Attributes {
            mode: entry.mode,
            uid: entry.uid,
            gid: entry.gid,
            mtime: entry.mtime,
            xattrs: attributes::allowed(entry, &self.limits, &mut self.not_set)?,
        };
        self.keep(path.len() + attributes.size())?;
        self.dirs.insert(path, DirRecord { inode, attributes });
        Ok(())
    }

    fn remember_whiteout(&mut self, parent: &Dir, name: Vec<u8>) -> Result<(), UnpackError> {
        self.keep(parent.path.len() + name.len())?;
        self.whiteouts.push((parent.path.clone(), name));
        Ok(())
    }

    fn make<R: BufRead>(
        &mut self,
        entry: &Entry,
        parent: &Rc<Dir>,
        name: &[u8],
        archive: &mut Archive<R>,
    ) -> Result<(), UnpackError> {
        match entry.kind {
            Kind::File => self.file(entry, parent, name, |applier, fd| applier.write(entry, fd, archive)),
            Kind::Dir => self.dir(entry, parent, name),
            Kind::Symlink => self.symlink(entry, parent, name),
            Kind::HardLink => self.hard_link(entry, parent, name),
            Kind::Char if entry.device == (0, 0) => {
                // Overlay knows no other meaning for this device.
                self.remember_whiteout(parent, name.to_vec())
            }
            Kind::Char => self.node(entry, parent, name, FileType::CharacterDevice),
            Kind::Block => self.node(entry, parent, name, FileType::BlockDevice),
            Kind::Fifo => self.node(entry, parent, name, FileType::Fifo),
            Kind::GnuSparse | Kind::PaxLocal | Kind::PaxGlobal | Kind::LongName | Kind::LongLink => {
                Err(UnpackError::refused(&entry.name, "an extension header out of place"))
            }
        }
    }

    /// Runs `create`; if something stands there already, removes it first.
    fn replacing<T>(
        &mut self,
        entry: &Entry,
        parent: &Dir,
        name: &[u8],
        create: impl Fn() -> Result<T, Errno>,
    ) -> Result<T, UnpackError> {
        match create() {
            Err(Errno::EXIST) => {
                self.remove(entry, parent, name)?;
                create().map_err(|errno| UnpackError::disk(&entry.name, "creating it", errno.into()))
            }
            result => result.map_err(|errno| UnpackError::disk(&entry.name, "creating it", errno.into())),
        }
    }

    fn remove(&mut self, entry: &Entry, parent: &Dir, name: &[u8]) -> Result<(), UnpackError> {
        let structural = self
            .tree
            .remove(parent, name)
            .map_err(|error| UnpackError::disk(&entry.name, "replacing an earlier entry", error))?;
        if structural {
            let path = name::join(&parent.path, name);
            let (inside, end) = name::range_within(&path);
            self.dirs.remove(&path);
            let gone: Vec<_> = self.dirs.range(inside..end).map(|(path, _)| path.clone()).collect();
            for path in gone {
                self.dirs.remove(&path);
            }
            take_within(&mut self.opaque, &path);
        }
        Ok(())
    }

    /// A regular file, whose data `fill` writes.
    pub(crate) fn file(
        &mut self,
        entry: &Entry,
        parent: &Rc<Dir>,
        name: &[u8],
        fill: impl FnOnce(&mut Self, &OwnedFd) -> Result<(), UnpackError>,
    ) -> Result<(), UnpackError> {
        let xattrs = attributes::allowed(entry, &self.limits, &mut self.not_set)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(entry.mode & 0o777);
        let fd = self.replacing(entry, parent, name, || rustix::fs::openat(&**parent, name, flags, mode))?;
        let disk = |action: &'static str| move |errno: Errno| UnpackError::disk(&entry.name, action, errno.into());
        fill(self, &fd)?;
        if (entry.uid, entry.gid) != self.owner {
            let (uid, gid) = attributes::owner(entry.uid, entry.gid);
            rustix::fs::fchown(&fd, uid, gid).map_err(disk("setting its owner"))?;
        }
        if entry.mode & 0o7000 != 0 {
            // Writing and changing the owner clear these bits.
            rustix::fs::fchmod(&fd, Mode::from_raw_mode(entry.mode)).map_err(disk("setting its mode"))?;
        }
        if !xattrs.is_empty() {
            attributes::set_xattrs(&fd, &xattrs, &mut self.not_set).map_err(|error| error.of(&entry.name))?;
        }
        rustix::fs::futimens(&fd, &attributes::times(entry.mtime)).map_err(disk("setting its time"))
    }

    fn write<R: BufRead>(&mut self, entry: &Entry, fd: &OwnedFd, archive: &mut Archive<R>) -> Result<(), UnpackError> {
        let Some(sparse) = &entry.sparse else {
            loop {
                let data = archive.data()?;
                if data.is_empty() {
                    return Ok(());
                }
                let written = rustix::io::retry_on_intr(|| rustix::io::write(fd, data))
                    .map_err(|errno| UnpackError::disk(&entry.name, "writing it", errno.into()))?;
                archive.consume(written);
            }
        };
        self.apparent = self.apparent.saturating_add(sparse.size);
        checks::check_apparent(entry, self.apparent, &self.limits)?;
        let disk = |errno: Errno| UnpackError::disk(&entry.name, "writing it", errno.into());
        rustix::fs::ftruncate(fd, sparse.size).map_err(disk)?;
        for (offset, length) in &sparse.segments {
            let (mut at, end) = (*offset, offset + length);
            while at < end {
                let data = archive.data()?;
                let part = data.len().min(usize::try_from(end - at).unwrap_or(usize::MAX));
                if part == 0 {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                }
                let written = rustix::io::retry_on_intr(|| rustix::io::pwrite(fd, &data[..part], at)).map_err(disk)?;
                archive.consume(written);
                at += written as u64;
            }
        }
        Ok(())
    }

    pub(crate) fn dir(&mut self, entry: &Entry, parent: &Rc<Dir>, name: &[u8]) -> Result<(), UnpackError> {
        let make = || rustix::fs::mkdirat(&**parent, name, Mode::from_raw_mode(0o755));
        let stat = || rustix::fs::statat(&**parent, name, AtFlags::SYMLINK_NOFOLLOW);
        let disk = |errno: Errno| UnpackError::disk(&entry.name, "creating it", errno.into());
        let stat = match make() {
            Err(Errno::EXIST) => {
                let found = stat().map_err(disk)?;
                if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
                    found
                } else {
                    self.remove(entry, parent, name)?;
                    make().and_then(|()| stat()).map_err(disk)?
                }
            }
            result => result.and_then(|()| stat()).map_err(disk)?,
        };
        let path = name::join(&parent.path, name);
        self.tree.made_explicit(&path);
        self.remember(path, stat.st_ino, entry)
    }

    pub(crate) fn symlink(&mut self, entry: &Entry, parent: &Rc<Dir>, name: &[u8]) -> Result<(), UnpackError> {
        checks::check_target(entry)?;
        self.replacing(entry, parent, name, || rustix::fs::symlinkat(&entry.link[..], &**parent, name))?;
        self.finish_node(entry, parent, name)
    }

    pub(crate) fn node(
        &mut self,
        entry: &Entry,
        parent: &Rc<Dir>,
        name: &[u8],
        kind: FileType,
    ) -> Result<(), UnpackError> {
        let (major, minor) = checks::device(entry)?;
        let device = rustix::fs::makedev(major, minor);
        let mode = Mode::from_raw_mode(entry.mode);
        self.replacing(entry, parent, name, || rustix::fs::mknodat(&**parent, name, kind, mode, device))?;
        self.finish_node(entry, parent, name)
    }

    /// Owner, special mode bits, attributes and time of what has no descriptor to set them by. It was made just now and by us.
    fn finish_node(&mut self, entry: &Entry, parent: &Rc<Dir>, name: &[u8]) -> Result<(), UnpackError> {
        let xattrs = attributes::allowed(entry, &self.limits, &mut self.not_set)?;
        let disk = |action: &'static str| move |errno: Errno| UnpackError::disk(&entry.name, action, errno.into());
        let nofollow = AtFlags::SYMLINK_NOFOLLOW;
        if (entry.uid, entry.gid) != self.owner {
            let (uid, gid) = attributes::owner(entry.uid, entry.gid);
            rustix::fs::chownat(&**parent, name, uid, gid, nofollow).map_err(disk("setting its owner"))?;
        }
        if entry.kind != Kind::Symlink && entry.mode & 0o7000 != 0 {
            rustix::fs::chmodat(&**parent, name, Mode::from_raw_mode(entry.mode), AtFlags::empty())
                .map_err(disk("setting its mode"))?;
        }
        if !xattrs.is_empty() {
            attributes::set_xattrs_beside(parent, name, &xattrs, &mut self.not_set)
                .map_err(|error| error.of(&entry.name))?;
        }
        rustix::fs::utimensat(&**parent, name, &attributes::times(entry.mtime), nofollow)
            .map_err(disk("setting its time"))
    }

    /// A second name for something that this layer made before. Its attributes are those of the first name.
    pub(crate) fn hard_link(&mut self, entry: &Entry, parent: &Rc<Dir>, name: &[u8]) -> Result<(), UnpackError> {
        let refuse = |problem: &str| UnpackError::refused(&entry.name, problem);
        let target = name::clean(&entry.link).map_err(|problem| refuse(&format!("hard link target: {problem}")))?;
        let (target_parent, target_name) = name::split(&target);
        if target_name.is_empty() {
            return Err(refuse("a hard link to the layer's root"));
        }
        let missing = || refuse("a hard link to something that this layer does not have (so far)");
        let target_parent = self.tree.dir(target_parent, false).map_err(|error| match error {
            LookupError::Missing | LookupError::NotADir | LookupError::TooDeep => missing(),
            LookupError::Io(error) => UnpackError::disk(&entry.name, "finding its target", error),
        })?;
        let stat =
            rustix::fs::statat(&*target_parent, target_name, AtFlags::SYMLINK_NOFOLLOW).map_err(|_| missing())?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            return Err(refuse("a hard link to a directory"));
        }
        let existing = rustix::fs::statat(&**parent, name, AtFlags::SYMLINK_NOFOLLOW);
        if existing.is_ok_and(|existing| (existing.st_dev, existing.st_ino) == (stat.st_dev, stat.st_ino)) {
            return Ok(());
        }
        if is_within(&name::join(&target_parent.path, target_name), &name::join(&parent.path, name)) {
            return Err(refuse("a hard link that replaces its own target"));
        }
        self.replacing(entry, parent, name, || {
            rustix::fs::linkat(&*target_parent, target_name, &**parent, name, AtFlags::empty())
        })
    }
}

fn lookup(name: &[u8], error: LookupError) -> UnpackError {
    match error {
        LookupError::Io(error) => UnpackError::disk(name, "opening it", error),
        LookupError::Missing => UnpackError::disk(name, "opening it", io::ErrorKind::NotFound.into()),
        LookupError::NotADir | LookupError::TooDeep => {
            UnpackError::disk(name, "opening it", io::ErrorKind::NotADirectory.into())
        }
    }
}
