//! Attributes of files → system calls.

use std::{io, os::fd::AsFd};

use rustix::{
    fs::{AtFlags, FileType, Gid, Mode, Stat, Timespec, Timestamps, Uid, XattrFlags},
    io::Errno,
};

use crate::{
    apply::{Attributes, SkippedXattrs, xattrs_size},
    error::UnpackError,
    tar::Xattrs,
};

/// The user and group that new files belong to.
pub(super) type Owner = (u32, u32);

/// Sets the attributes of an open directory, as far as they differ.
pub(super) fn set_on_dir(
    dir: impl AsFd,
    stat: &Stat,
    attributes: &Attributes,
    skipped: &mut SkippedXattrs,
) -> Result<(), UnpackError> {
    let failed = |errno: Errno| UnpackError::disk("setting its attributes", errno.into());
    let other_owner = (stat.st_uid, stat.st_gid) != (attributes.uid, attributes.gid);
    if other_owner {
        let (uid, gid) = owner(attributes);
        rustix::fs::fchown(&dir, uid, gid).map_err(failed)?;
    }
    // A change of the owner may clear bits of the mode.
    if other_owner || stat.st_mode & 0o7777 != attributes.mode & 0o7777 {
        rustix::fs::fchmod(&dir, Mode::from_raw_mode(attributes.mode)).map_err(failed)?;
    }
    set_xattrs(&dir, &attributes.xattrs, skipped)?;
    rustix::fs::futimens(&dir, &times(attributes.mtime)).map_err(failed)
}

/// Sets the attributes of a new regular file that has its data and its permissions.
pub(super) fn set_on_file(
    fd: impl AsFd,
    made_by: Owner,
    attributes: &Attributes,
    skipped: &mut SkippedXattrs,
) -> Result<(), UnpackError> {
    if (attributes.uid, attributes.gid) != made_by {
        let (uid, gid) = owner(attributes);
        rustix::fs::fchown(&fd, uid, gid).map_err(failed("setting its owner"))?;
    }
    if attributes.mode & 0o7000 != 0 {
        // Writing and changing the owner clear these bits.
        rustix::fs::fchmod(&fd, Mode::from_raw_mode(attributes.mode)).map_err(failed("setting its mode"))?;
    }
    if !attributes.xattrs.is_empty() {
        set_xattrs(&fd, &attributes.xattrs, skipped)?;
    }
    rustix::fs::futimens(&fd, &times(attributes.mtime)).map_err(failed("setting its time"))
}

/// Sets the attributes of a new link, device or FIFO, which cannot be opened.
pub(super) fn set_on_special(
    parent: impl AsFd,
    name: &[u8],
    is_symlink: bool,
    made_by: Owner,
    attributes: &Attributes,
    skipped: &mut SkippedXattrs,
) -> Result<(), UnpackError> {
    let nofollow = AtFlags::SYMLINK_NOFOLLOW;
    if (attributes.uid, attributes.gid) != made_by {
        let (uid, gid) = owner(attributes);
        rustix::fs::chownat(&parent, name, uid, gid, nofollow).map_err(failed("setting its owner"))?;
    }
    if !is_symlink && attributes.mode & 0o7000 != 0 {
        rustix::fs::chmodat(&parent, name, Mode::from_raw_mode(attributes.mode), AtFlags::empty())
            .map_err(failed("setting its mode"))?;
    }
    if !attributes.xattrs.is_empty() {
        set_xattrs_by_name(&parent, name, &attributes.xattrs, skipped)?;
    }
    rustix::fs::utimensat(&parent, name, &times(attributes.mtime), nofollow).map_err(failed("setting its time"))
}

/// Sets the attributes of a file of any kind that has attributes.
pub(super) fn set_again(
    parent: impl AsFd,
    name: &[u8],
    attributes: &Attributes,
    skipped: &mut SkippedXattrs,
) -> Result<(), UnpackError> {
    let nofollow = AtFlags::SYMLINK_NOFOLLOW;
    let (uid, gid) = owner(attributes);
    rustix::fs::chownat(&parent, name, uid, gid, nofollow).map_err(failed("setting its owner"))?;
    let stat = rustix::fs::statat(&parent, name, nofollow).map_err(failed("finding it"))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
        // No other process can put a link in its place.
        rustix::fs::chmodat(&parent, name, Mode::from_raw_mode(attributes.mode), AtFlags::empty())
            .map_err(failed("setting its mode"))?;
    }
    if !attributes.xattrs.is_empty() {
        set_xattrs_by_name(&parent, name, &attributes.xattrs, skipped)?;
    }
    rustix::fs::utimensat(&parent, name, &times(attributes.mtime), nofollow).map_err(failed("setting its time"))
}

fn failed(action: &'static str) -> impl Fn(Errno) -> UnpackError {
    move |errno| UnpackError::disk(action, errno.into())
}

fn set_xattrs(fd: impl AsFd, xattrs: &Xattrs, skipped: &mut SkippedXattrs) -> Result<(), UnpackError> {
    set_each(xattrs, skipped, |key, value| rustix::fs::fsetxattr(fd.as_fd(), key, value, XattrFlags::empty()))
}

/// Older kernels have no system call that takes a directory and a name for this. The thread, whose working directory is
/// its own (`sys::confine_thread`), therefore goes to the directory.
fn set_xattrs_by_name(
    parent: impl AsFd,
    name: &[u8],
    xattrs: &Xattrs,
    skipped: &mut SkippedXattrs,
) -> Result<(), UnpackError> {
    rustix::process::fchdir(parent).map_err(failed("entering its directory"))?;
    set_each(xattrs, skipped, |key, value| rustix::fs::lsetxattr(name, key, value, XattrFlags::empty()))
}

fn set_each(
    xattrs: &Xattrs,
    skipped: &mut SkippedXattrs,
    set: impl Fn(&[u8], &[u8]) -> Result<(), Errno>,
) -> Result<(), UnpackError> {
    for (key, value) in xattrs {
        match set(key, value) {
            // On a file system without them the image runs all the same. Without capabilities its programs would fail.
            Err(Errno::OPNOTSUPP) if key != b"security.capability" => skipped.add(key),
            Err(errno) => return Err(xattr_error(errno, xattrs_size(xattrs))),
            Ok(()) => {}
        }
    }
    Ok(())
}

/// `bytes` is the size of all extended attributes of the file.
fn xattr_error(errno: Errno, bytes: usize) -> UnpackError {
    // Many file systems keep a few kilobytes per file and report more than that as a full disk.
    if errno == Errno::NOSPC && bytes > 2048 {
        let problem = format!("its extended attributes of {bytes} bytes do not fit this file system");
        return UnpackError::refused(b"", problem);
    }
    UnpackError::disk("setting its extended attributes", io::Error::from(errno))
}

fn owner(attributes: &Attributes) -> (Option<Uid>, Option<Gid>) {
    (Some(Uid::from_raw(attributes.uid)), Some(Gid::from_raw(attributes.gid)))
}

/// The time of the last modification serves as that of the last access too.
fn times((seconds, nanos): (i64, u32)) -> Timestamps {
    let time = Timespec { tv_sec: seconds, tv_nsec: nanos.into() };
    Timestamps { last_access: time, last_modification: time }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_too_large_for_the_file_system_is_the_images_fault() {
        let failed = |bytes| xattr_error(Errno::NOSPC, bytes).within(b"f");
        assert!(matches!(failed(60_000), UnpackError::Refused { .. }));
        assert!(matches!(failed(100), UnpackError::Disk { .. }));
    }
}
