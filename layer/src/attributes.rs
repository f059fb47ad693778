//! What a file is apart from its content: owner, mode, times and extended attributes.
//!
//! Which attributes an image may set is decided by name and kind of file; [`NotSet`] counts the others, so that nothing is left
//! out without a word.

use std::{io, os::fd::AsFd};

use rustix::{
    fs::{Gid, Mode, Stat, Timespec, Timestamps, Uid, XattrFlags},
    io::Errno,
};

use crate::{
    directory::tree::Dir,
    error::{UnpackError, show},
    limits::Limits,
    tar::{archive::Entry, header::Kind, pax::Xattrs},
};

/// Attributes of a directory, set when nothing is made in it any more.
pub(crate) struct Attributes {
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: (i64, u32),
    pub(crate) xattrs: Xattrs,
}

/// Extended attributes that were left out: overlay's own marks would let an image pretend, labels belong to the machine, and the
/// kernel keeps some kinds of attributes only on some kinds of files (xattr(7)).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NotSet {
    /// How many.
    pub count: u64,
    /// The first one's name, fit for a log.
    pub first: String,
}

impl NotSet {
    pub(crate) fn note(&mut self, key: &[u8]) {
        if self.count == 0 {
            self.first = show(key);
        }
        self.count += 1;
    }
}

/// A system call that failed, for an entry that the caller knows.
pub(crate) struct Failed {
    action: &'static str,
    errno: Errno,
    /// Bytes of extended attributes that were to be set.
    bytes: usize,
}

impl Failed {
    pub(crate) fn of(self, entry: &[u8]) -> UnpackError {
        // Many file systems keep a few kilobytes per file and call more than that a full disk.
        if self.errno == Errno::NOSPC && self.bytes > 2048 {
            let problem = format!("its extended attributes of {} bytes do not fit this file system", self.bytes);
            return UnpackError::refused(entry, problem);
        }
        UnpackError::disk(entry, self.action, io::Error::from(self.errno))
    }
}

impl Attributes {
    /// Bytes of memory that it takes beside itself.
    pub(crate) fn size(&self) -> usize {
        self.xattrs.iter().map(|(key, value)| key.len() + value.len() + 48).sum()
    }

    /// Sets all of it on an open directory, as far as it is not so already.
    pub(crate) fn set(&self, directory: impl AsFd, stat: &Stat, not_set: &mut NotSet) -> Result<(), Failed> {
        let failed = |errno| Failed { action: "setting its attributes", errno, bytes: 0 };
        let other_owner = (stat.st_uid, stat.st_gid) != (self.uid, self.gid);
        if other_owner {
            let (uid, gid) = owner(self.uid, self.gid);
            rustix::fs::fchown(&directory, uid, gid).map_err(failed)?;
        }
        // Changing the owner may clear bits of the mode.
        if other_owner || stat.st_mode & 0o7777 != self.mode & 0o7777 {
            rustix::fs::fchmod(&directory, Mode::from_raw_mode(self.mode)).map_err(failed)?;
        }
        set_xattrs(&directory, &self.xattrs, not_set)?;
        rustix::fs::futimens(&directory, &times(self.mtime)).map_err(failed)
    }
}

/// Sets extended attributes by descriptor.
pub(crate) fn set_xattrs(fd: impl AsFd, xattrs: &Xattrs, not_set: &mut NotSet) -> Result<(), Failed> {
    each(xattrs, not_set, |key, value| rustix::fs::fsetxattr(fd.as_fd(), key, value, XattrFlags::empty()))
}

/// Sets extended attributes of what cannot be opened: a link, a device, a pipe. No system call of all kernels that we run on takes
/// a directory and a name for this, so the thread, whose working directory is its own (`sys::confine_thread`), goes to the directory.
pub(crate) fn set_xattrs_beside(
    parent: &Dir,
    name: &[u8],
    xattrs: &Xattrs,
    not_set: &mut NotSet,
) -> Result<(), Failed> {
    let entering = |errno| Failed { action: "entering its directory", errno, bytes: 0 };
    rustix::process::fchdir(parent).map_err(entering)?;
    each(xattrs, not_set, |key, value| rustix::fs::lsetxattr(name, key, value, XattrFlags::empty()))
}

fn each(xattrs: &Xattrs, not_set: &mut NotSet, set: impl Fn(&[u8], &[u8]) -> Result<(), Errno>) -> Result<(), Failed> {
    let bytes = || xattrs.iter().map(|(key, value)| key.len() + value.len()).sum();
    for (key, value) in xattrs {
        match set(key, value) {
            // A file system without them runs the image all the same; without capabilities programs fail.
            Err(Errno::OPNOTSUPP) if key != b"security.capability" => not_set.note(key),
            Err(errno) => {
                return Err(Failed { action: "setting its extended attributes", errno, bytes: bytes() });
            }
            Ok(()) => {}
        }
    }
    Ok(())
}

/// Whether an image may set this attribute, and the kernel knows it for this kind of file: `user.*` on files and directories, access
/// lists on everything but links, default access lists on directories, capabilities on everything.
fn is_set_on(kind: Kind, key: &[u8]) -> bool {
    let holds_data = matches!(kind, Kind::File | Kind::Dir);
    match key {
        b"security.capability" => true,
        b"system.posix_acl_access" => kind != Kind::Symlink,
        b"system.posix_acl_default" => kind == Kind::Dir,
        key => holds_data && key.starts_with(b"user.") && !key.starts_with(b"user.overlay."),
    }
}

/// The extended attributes of an entry that images may set and that the kernel knows for its kind of file.
pub(crate) fn allowed(entry: &Entry, limits: &Limits, not_set: &mut NotSet) -> Result<Xattrs, UnpackError> {
    let mut total = 0;
    let mut kept = Vec::new();
    for (key, value) in &entry.xattrs {
        total += key.len() + value.len();
        if value.len() > limits.xattr_bytes || total > limits.xattr_total_bytes || key.len() > 255 {
            return Err(UnpackError::refused(&entry.name, "its extended attributes are too large"));
        }
        if is_set_on(entry.kind, key) {
            kept.push((key.clone(), value.clone()));
        } else {
            not_set.note(key);
        }
    }
    Ok(kept)
}

/// Owner and group as the system calls want them.
pub(crate) fn owner(uid: u32, gid: u32) -> (Option<Uid>, Option<Gid>) {
    (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
}

/// The time of modification, which stands for that of access too.
pub(crate) fn times((seconds, nanos): (i64, u32)) -> Timestamps {
    let time = Timespec { tv_sec: seconds, tv_nsec: nanos.into() };
    Timestamps { last_access: time, last_modification: time }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_image_may_set_where() {
        use Kind::{Char, Dir, Fifo, File, Symlink};
        for (key, kinds) in [
            ("user.a", &[File, Dir][..]),
            ("user.overlay.opaque", &[]),
            ("trusted.overlay.opaque", &[]),
            ("trusted.x", &[]),
            ("security.selinux", &[]),
            ("security.capability", &[File, Dir, Symlink, Char, Fifo]),
            ("system.posix_acl_access", &[File, Dir, Char, Fifo]),
            ("system.posix_acl_default", &[Dir]),
            ("user", &[]),
            ("", &[]),
        ] {
            for kind in [File, Dir, Symlink, Char, Fifo] {
                assert_eq!(is_set_on(kind, key.as_bytes()), kinds.contains(&kind), "{key} on {kind:?}");
            }
        }
    }

    #[test]
    fn a_value_too_large_for_the_file_system_is_the_images_fault() {
        let failed = |bytes| Failed { action: "setting", errno: Errno::NOSPC, bytes }.of(b"f");
        assert!(matches!(failed(60_000), UnpackError::Refused { .. }));
        assert!(matches!(failed(100), UnpackError::Disk { .. }));
    }
}
