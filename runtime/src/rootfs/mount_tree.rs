//! Detached mount trees: copies of mounts that are not attached yet (open_tree(2)).

use std::{
    fs, io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{CWD, FileType, fstat},
    mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree},
};

use crate::sys::unrestrict_mount;

/// Copies the mount at a path and all mounts below it.
pub(super) fn clone_tree(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    open_tree(CWD, path, flags)
}

/// Copies the mount at a path without the mounts below it.
pub(super) fn clone_one(path: &Path) -> rustix::io::Result<OwnedFd> {
    open_tree(CWD, path, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)
}

/// Attaches a tree at a path. A directory or a file, like the root of the tree, is created there.
pub(super) fn attach_tree(tree: &OwnedFd, path: &Path) -> io::Result<()> {
    if FileType::from_raw_mode(fstat(tree)?.st_mode) == FileType::Directory {
        fs::create_dir_all(path)?;
    } else {
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(path, "")?;
    }
    Ok(move_mount(tree, "", CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// Mounts a directory on `target` without the restrictions (noexec, nosuid, nodev, read-only) of its own mount. An
/// overlay would not have them either.
pub(super) fn mount_unrestricted(directory: &Path, target: &Path) -> io::Result<()> {
    let tree = clone_one(directory)?;
    unrestrict_mount(tree.as_fd())?;
    Ok(move_mount(&tree, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}
