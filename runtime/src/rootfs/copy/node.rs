//! Copying one thing of an image with all that images carry: content with its holes, owner, mode, time, extended attributes, and the
//! fact that two names are one file.

use std::{
    collections::HashMap,
    ffi::{CStr, CString},
    io,
    os::fd::{AsRawFd, OwnedFd},
};

use rustix::{
    fs::{
        AtFlags, FileType, Gid, Mode, OFlags, SeekFrom, Stat, Timespec, Timestamps, Uid, XattrFlags, chmodat, chownat,
        copy_file_range, fchmod, fchown, fgetxattr, flistxattr, fsetxattr, fstat, ftruncate, futimens, ioctl_ficlone,
        lgetxattr, linkat, llistxattr, lsetxattr, mknodat, openat, readlinkat, seek, symlinkat, utimensat,
    },
    io::{Errno, pread, pwrite, retry_on_intr},
};

/// What the kernel copies in one call; it may be asked for more, but then cannot be killed in between.
const PIECE: u64 = 64 << 20;
/// Linux allows no larger list and no larger value (xattr(7)).
const XATTR_MAX: usize = 64 << 10;

/// Copies into one directory.
pub(super) struct Copier {
    root: OwnedFd,
    /// Files with several names: device and inode, and the path of the first copy.
    links: HashMap<(u64, u64), Vec<u8>>,
    /// The file system may share data between files; one refusal is enough.
    reflinks: bool,
    buffer: Vec<u8>,
}

impl Copier {
    pub fn new(root: OwnedFd) -> Self {
        Self { root, links: HashMap::new(), reflinks: true, buffer: vec![0; XATTR_MAX] }
    }

    pub fn root(&self) -> &OwnedFd {
        &self.root
    }

    /// Copies what is no directory into the open directory `target`, which is at `path`, under its own name.
    pub fn copy(
        &mut self,
        (source, name): (&OwnedFd, &CStr),
        stat: &Stat,
        (target, path): (&OwnedFd, &[u8]),
    ) -> io::Result<()> {
        let inode = (stat.st_dev, stat.st_ino);
        if stat.st_nlink > 1 {
            if let Some(first) = self.links.get(&inode) {
                return Ok(linkat(&self.root, &first[..], target, name, AtFlags::empty())?);
            }
            self.links.insert(inode, join(path, name));
        }
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => return self.file((source, name), stat, target),
            FileType::Symlink => symlinkat(readlinkat(source, name, Vec::new())?, target, name)?,
            kind => {
                mknodat(target, name, kind, Mode::from_raw_mode(stat.st_mode), stat.st_rdev)?;
            }
        }
        chownat(target, name, uid(stat), gid(stat), AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            chmodat(target, name, Mode::from_raw_mode(stat.st_mode), AtFlags::empty())?;
        }
        self.xattrs_beside(source, target, name)?;
        Ok(utimensat(target, name, &times(stat), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn file(&mut self, (source, name): (&OwnedFd, &CStr), stat: &Stat, target: &OwnedFd) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let from = openat(source, name, flags, Mode::empty())?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let to = openat(target, name, flags, Mode::RUSR | Mode::WUSR)?;
        self.content(&from, &to, stat.st_size.cast_unsigned())?;
        self.attributes(&from, stat, &to)
    }

    /// Gives a directory that is filled the attributes of `model`.
    pub fn finish_directory(&mut self, model: &OwnedFd, path: &[u8]) -> io::Result<()> {
        let copy = super::directory(&self.root, path)?;
        self.attributes(model, &fstat(model)?, &copy)
    }

    /// Owner first, because changing it takes special bits and capabilities away; time last.
    fn attributes(&mut self, from: &OwnedFd, stat: &Stat, to: &OwnedFd) -> io::Result<()> {
        fchown(to, uid(stat), gid(stat))?;
        fchmod(to, Mode::from_raw_mode(stat.st_mode))?;
        for name in known(flistxattr(from, &mut self.buffer[..]), &self.buffer)? {
            let length = fgetxattr(from, &name, &mut self.buffer[..])?;
            tolerate(&name, fsetxattr(to, &name, &self.buffer[..length], XattrFlags::empty()))?;
        }
        Ok(futimens(to, &times(stat))?)
    }

    /// The same for what cannot be opened: a link, a device, a pipe.
    fn xattrs_beside(&mut self, source: &OwnedFd, target: &OwnedFd, name: &CStr) -> io::Result<()> {
        let below = |directory: &OwnedFd| {
            [format!("/proc/self/fd/{}/", directory.as_raw_fd()).as_bytes(), name.to_bytes()].concat()
        };
        let (from, to) = (below(source), below(target));
        for name in known(llistxattr(&from[..], &mut self.buffer[..]), &self.buffer)? {
            let length = lgetxattr(&from[..], &name, &mut self.buffer[..])?;
            tolerate(&name, lsetxattr(&to[..], &name, &self.buffer[..length], XattrFlags::empty()))?;
        }
        Ok(())
    }

    fn content(&mut self, from: &OwnedFd, to: &OwnedFd, size: u64) -> io::Result<()> {
        if size == 0 {
            return Ok(());
        }
        if self.reflinks {
            match ioctl_ficlone(to, from) {
                Ok(()) => return Ok(()),
                Err(Errno::OPNOTSUPP | Errno::XDEV | Errno::INVAL | Errno::NOTTY | Errno::PERM) => {
                    self.reflinks = false
                }
                Err(error) => return Err(error.into()),
            }
        }
        ftruncate(to, size)?;
        let mut at = 0;
        while let Some((begin, end)) = data(from, at, size)? {
            self.range(from, to, begin, end)?;
            at = end;
        }
        Ok(())
    }

    /// Copies in the kernel, and through memory where it cannot.
    fn range(&mut self, from: &OwnedFd, to: &OwnedFd, begin: u64, end: u64) -> io::Result<()> {
        let mut at = begin;
        while at < end {
            let (mut input, mut output) = (at, at);
            let length = usize::try_from((end - at).min(PIECE)).unwrap_or(usize::MAX);
            let copied = retry_on_intr(|| copy_file_range(from, Some(&mut input), to, Some(&mut output), length));
            let copied = match copied {
                Ok(0) | Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM) => {
                    self.piece(from, to, at, end)?
                }
                result => result?,
            };
            at += copied as u64;
        }
        Ok(())
    }

    fn piece(&mut self, from: &OwnedFd, to: &OwnedFd, at: u64, end: u64) -> io::Result<usize> {
        let length = usize::try_from(end - at).unwrap_or(usize::MAX).min(self.buffer.len());
        let read = retry_on_intr(|| pread(from, &mut self.buffer[..length], at))?;
        if read == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter"));
        }
        Ok(retry_on_intr(|| pwrite(to, &self.buffer[..read], at))?)
    }
}

/// Names of the attributes that images may set. Overlay's own marks say something about the layer, labels belong to the machine.
fn known(listed: Result<usize, Errno>, buffer: &[u8]) -> io::Result<Vec<CString>> {
    let length = match listed {
        Err(Errno::OPNOTSUPP) => 0,
        result => result?,
    };
    let names = buffer[..length].split(|byte| *byte == 0).filter(|name| {
        let acl = name.starts_with(b"system.posix_acl_");
        name.starts_with(b"user.") || acl || *name == b"security.capability"
    });
    Ok(names.filter_map(|name| CString::new(name).ok()).collect())
}

/// As when the layer was unpacked: without capabilities programs fail, without other attributes they run.
fn tolerate(name: &CStr, set: Result<(), Errno>) -> io::Result<()> {
    match set {
        Err(Errno::OPNOTSUPP) if name != c"security.capability" => Ok(()),
        result => Ok(result?),
    }
}

/// The next stretch of data at or behind `at`; holes stay holes.
fn data(file: &OwnedFd, at: u64, size: u64) -> io::Result<Option<(u64, u64)>> {
    if at >= size {
        return Ok(None);
    }
    let begin = match seek(file, SeekFrom::Data(at)) {
        Ok(begin) => begin,
        Err(Errno::NXIO) => return Ok(None),
        // A file system that knows of no holes.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((at, size))),
        Err(error) => return Err(error.into()),
    };
    let end = seek(file, SeekFrom::Hole(begin))?.min(size);
    Ok((begin < size).then_some((begin, end)))
}

pub(super) fn join(path: &[u8], name: &CStr) -> Vec<u8> {
    let mut joined = path.to_vec();
    if !joined.is_empty() {
        joined.push(b'/');
    }
    joined.extend_from_slice(name.to_bytes());
    joined
}

fn uid(stat: &Stat) -> Option<Uid> {
    Some(Uid::from_raw(stat.st_uid))
}

fn gid(stat: &Stat) -> Option<Gid> {
    Some(Gid::from_raw(stat.st_gid))
}

fn times(stat: &Stat) -> Timestamps {
    let time = Timespec { tv_sec: stat.st_mtime, tv_nsec: stat.st_mtime_nsec.cast_signed() };
    Timestamps { last_access: time, last_modification: time }
}
