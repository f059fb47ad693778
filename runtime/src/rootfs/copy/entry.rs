//! Copying one file of an image with everything that images can describe: content with its holes, owner, mode, time,
//! extended attributes and hard links.

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

use super::path::{join, open_directory};

/// The most bytes that one system call copies. A longer call would delay the end of a killed process.
const CHUNK: u64 = 64 << 20;
/// The largest list of names and the largest value that Linux allows, in bytes (xattr(7)).
const XATTR_MAX: usize = 64 << 10;

/// Whether the source has marks of overlayfs, which are not copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Marks {
    /// It is a layer.
    OfOverlayfs,
    /// It is any directory: every file and attribute is copied.
    None,
}

/// How the content of files was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocks {
    /// The copy shares the blocks of the source until one of both is changed (reflink).
    Shared,
    /// The copy has blocks of its own.
    Copied,
}

/// Copies files to one directory tree.
pub(super) struct EntryCopier<'a> {
    root: OwnedFd,
    /// Files with several hard links: device and inode, and the path of the first copy.
    hard_links: HashMap<(u64, u64), Vec<u8>>,
    /// Whether reflinks are tried. The first refusal of the file system ends this.
    reflinks: bool,
    buffer: Vec<u8>,
    marks: Marks,
    cancelled: &'a dyn Fn() -> bool,
}

impl<'a> EntryCopier<'a> {
    pub fn new(root: OwnedFd, marks: Marks, cancelled: &'a dyn Fn() -> bool) -> Self {
        Self { root, hard_links: HashMap::new(), reflinks: true, buffer: vec![0; XATTR_MAX], marks, cancelled }
    }

    /// Fails if the copy is cancelled. It is called before each file and before each part of a file's content.
    pub fn check(&self) -> io::Result<()> {
        let cancelled = || io::Error::new(io::ErrorKind::Interrupted, "the copy was cancelled");
        if (self.cancelled)() { Err(cancelled()) } else { Ok(()) }
    }

    /// How the content of files has been copied so far.
    pub fn blocks(&self) -> Blocks {
        if self.reflinks { Blocks::Shared } else { Blocks::Copied }
    }

    /// The root of the directory tree.
    pub fn root(&self) -> &OwnedFd {
        &self.root
    }

    /// Copies a file that is not a directory into the open directory `target`, which is at `path`. It keeps its name.
    pub fn copy(
        &mut self,
        (source, name): (&OwnedFd, &CStr),
        stat: &Stat,
        (target, path): (&OwnedFd, &[u8]),
    ) -> io::Result<()> {
        let inode = (stat.st_dev, stat.st_ino);
        if stat.st_nlink > 1 {
            if let Some(first) = self.hard_links.get(&inode) {
                return Ok(linkat(&self.root, &first[..], target, name, AtFlags::empty())?);
            }
            self.hard_links.insert(inode, join(path, name));
        }
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => return self.copy_file((source, name), stat, target),
            FileType::Symlink => symlinkat(readlinkat(source, name, Vec::new())?, target, name)?,
            kind => {
                mknodat(target, name, kind, Mode::from_raw_mode(stat.st_mode), stat.st_rdev)?;
            }
        }
        chownat(target, name, uid(stat), gid(stat), AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            chmodat(target, name, Mode::from_raw_mode(stat.st_mode), AtFlags::empty())?;
        }
        self.copy_xattrs_by_path(source, target, name)?;
        Ok(utimensat(target, name, &times(stat), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn copy_file(&mut self, (source, name): (&OwnedFd, &CStr), stat: &Stat, target: &OwnedFd) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let from = openat(source, name, flags, Mode::empty())?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let to = openat(target, name, flags, Mode::RUSR | Mode::WUSR)?;
        self.copy_content(&from, &to, stat.st_size.cast_unsigned())?;
        self.copy_attributes(&from, stat, &to)
    }

    /// Sets the attributes of a filled directory to those of `model`.
    pub fn finish_directory(&mut self, model: &OwnedFd, path: &[u8]) -> io::Result<()> {
        let copy = open_directory(&self.root, path)?;
        self.copy_attributes(model, &fstat(model)?, &copy)
    }

    /// The owner is set first, because a change of the owner clears set-id bits and file capabilities. The time is set
    /// last.
    fn copy_attributes(&mut self, from: &OwnedFd, stat: &Stat, to: &OwnedFd) -> io::Result<()> {
        fchown(to, uid(stat), gid(stat))?;
        fchmod(to, Mode::from_raw_mode(stat.st_mode))?;
        for name in copied_names(flistxattr(from, &mut self.buffer[..]), &self.buffer, self.marks)? {
            let length = fgetxattr(from, &name, &mut self.buffer[..])?;
            tolerate(&name, fsetxattr(to, &name, &self.buffer[..length], XattrFlags::empty()))?;
        }
        Ok(futimens(to, &times(stat))?)
    }

    /// Copies the extended attributes of a file that cannot be opened: a symbolic link, a device or a FIFO.
    fn copy_xattrs_by_path(&mut self, source: &OwnedFd, target: &OwnedFd, name: &CStr) -> io::Result<()> {
        let below = |directory: &OwnedFd| {
            [format!("/proc/self/fd/{}/", directory.as_raw_fd()).as_bytes(), name.to_bytes()].concat()
        };
        let (from, to) = (below(source), below(target));
        for name in copied_names(llistxattr(&from[..], &mut self.buffer[..]), &self.buffer, self.marks)? {
            let length = lgetxattr(&from[..], &name, &mut self.buffer[..])?;
            tolerate(&name, lsetxattr(&to[..], &name, &self.buffer[..length], XattrFlags::empty()))?;
        }
        Ok(())
    }

    fn copy_content(&mut self, from: &OwnedFd, to: &OwnedFd, size: u64) -> io::Result<()> {
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
        let mut offset = 0;
        while let Some((begin, end)) = next_data(from, offset, size)? {
            self.copy_range(from, to, begin, end)?;
            offset = end;
        }
        Ok(())
    }

    /// Copies bytes in the kernel if it can, otherwise through memory.
    fn copy_range(&mut self, from: &OwnedFd, to: &OwnedFd, begin: u64, end: u64) -> io::Result<()> {
        let mut offset = begin;
        while offset < end {
            self.check()?;
            let (mut input, mut output) = (offset, offset);
            let length = usize::try_from((end - offset).min(CHUNK)).unwrap_or(usize::MAX);
            let copied = retry_on_intr(|| copy_file_range(from, Some(&mut input), to, Some(&mut output), length));
            let copied = match copied {
                Ok(0) | Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM) => {
                    self.copy_through_memory(from, to, offset, end)?
                }
                result => result?,
            };
            offset += copied as u64;
        }
        Ok(())
    }

    /// Copies as many bytes as fit in the buffer, and returns their number.
    fn copy_through_memory(&mut self, from: &OwnedFd, to: &OwnedFd, offset: u64, end: u64) -> io::Result<usize> {
        let length = usize::try_from(end - offset).unwrap_or(usize::MAX).min(self.buffer.len());
        let read = retry_on_intr(|| pread(from, &mut self.buffer[..length], offset))?;
        if read == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter"));
        }
        Ok(retry_on_intr(|| pwrite(to, &self.buffer[..read], offset))?)
    }
}

/// The names of the extended attributes that are copied. Overlayfs' own marks describe the layer, and security labels
/// belong to the machine, so neither is copied.
fn copied_names(listed: Result<usize, Errno>, buffer: &[u8], marks: Marks) -> io::Result<Vec<CString>> {
    let length = match listed {
        Err(Errno::OPNOTSUPP) => 0,
        result => result?,
    };
    let names = buffer[..length].split(|byte| *byte == 0).filter(|name| {
        let acl = name.starts_with(b"system.posix_acl_");
        let trusted = marks == Marks::None && name.starts_with(b"trusted.");
        name.starts_with(b"user.") || acl || trusted || *name == b"security.capability"
    });
    Ok(names.filter_map(|name| CString::new(name).ok()).collect())
}

/// Ignores that the file system does not support an extended attribute, as the unpacking of layers does. File
/// capabilities are the exception, because programs fail without them.
fn tolerate(name: &CStr, set: Result<(), Errno>) -> io::Result<()> {
    match set {
        Err(Errno::OPNOTSUPP) if name != c"security.capability" => Ok(()),
        result => Ok(result?),
    }
}

/// The next range of data at or after `offset`. Holes are skipped.
fn next_data(file: &OwnedFd, offset: u64, size: u64) -> io::Result<Option<(u64, u64)>> {
    if offset >= size {
        return Ok(None);
    }
    let begin = match seek(file, SeekFrom::Data(offset)) {
        Ok(begin) => begin,
        Err(Errno::NXIO) => return Ok(None),
        // The file system does not report holes.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((offset, size))),
        Err(error) => return Err(error.into()),
    };
    let end = seek(file, SeekFrom::Hole(begin))?.min(size);
    Ok((begin < size).then_some((begin, end)))
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
