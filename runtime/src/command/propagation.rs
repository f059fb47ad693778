//! Mount propagation of binds, which is set after all mounts of the container were made.
//!
//! A mount that is made in a shared mount also appears in its peers, here on the host, and would stay there. So all
//! mounts are private until the last one was made.

use std::{
    fs, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::Path,
};

use host::resolve;
use rustix::{
    fs::{CWD, OFlags, ResolveFlags},
    io::Errno,
    mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree},
};

use crate::{mountinfo::mounts_below, sys::kernel_joins_groups};

/// Lets the private mount at `place`, and all mounts below it, join the groups of the corresponding mounts of `tree`, a
/// detached clone of the same source. A mount without a counterpart stays private: it is another mount of the
/// container. A tree that propagates nothing changes nothing; before Linux 5.15 it is an error, because no tree can be
/// joined there (EINVAL).
pub(super) fn join_groups(tree: impl AsFd, place: &Path) -> io::Result<()> {
    let target = open_tree(CWD, place, OpenTreeFlags::OPEN_TREE_CLOEXEC)?;
    join_group(tree.as_fd(), &target)?;
    let root = fs::read_link(format!("/proc/self/fd/{}", target.as_raw_fd()))?;
    for path in mounts_below(&fs::read("/proc/self/mountinfo")?, &root) {
        let Ok(below) = path.strip_prefix(&root) else { continue };
        // Another container may change the directories of a shared source meanwhile. A wrong mount is no counterpart.
        if let (Ok(from), Ok(to)) = (open_below(tree.as_fd(), below), open_below(target.as_fd(), below)) {
            join_group(from.as_fd(), &to)?;
        }
    }
    Ok(())
}

fn join_group(from: BorrowedFd<'_>, to: &OwnedFd) -> io::Result<()> {
    let by_descriptors = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    match move_mount(from, "", to, "", by_descriptors | MoveMountFlags::MOVE_MOUNT_SET_GROUP) {
        // `from` is private, or the two are not the roots of mounts of one file system.
        Err(Errno::INVAL) if kernel_joins_groups() => Ok(()),
        other => Ok(other?),
    }
}

fn open_below(directory: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Errno> {
    let limits = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    resolve::open_below(directory, path, OFlags::PATH, limits)
}
