//! Copies of mounts that are attached nowhere yet.

use std::{fs, io, os::fd::OwnedFd, path::Path};

use rustix::{
    fs::{CWD, FileType, fstat},
    mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree},
};

/// A copy of the mounts at a path.
pub(super) fn copy(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    open_tree(CWD, path, flags)
}

/// Attaches a tree at a place, which is made for it: a directory or a file, as its root is.
pub(super) fn attach(tree: &OwnedFd, place: &Path) -> io::Result<()> {
    if FileType::from_raw_mode(fstat(tree)?.st_mode) == FileType::Directory {
        fs::create_dir_all(place)?;
    } else {
        place.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(place, "")?;
    }
    Ok(move_mount(tree, "", CWD, place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}
