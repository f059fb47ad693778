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

use crate::{
    error::{Context, RuntimeError},
    id_map::IdMap,
    sys::{PropagationType, set_propagation, unrestrict_mount},
};

/// Copies the mount at a path and all mounts below it.
pub(super) fn clone_tree(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    open_tree(CWD, path, flags)
}

/// Copies the mount at a path without the mounts below it.
pub(super) fn clone_one(path: &Path) -> rustix::io::Result<OwnedFd> {
    open_tree(CWD, path, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)
}

/// Copies the mount at an open file without the mounts below it. Linux before 6.15 refuses that for a detached mount,
/// with EINVAL.
pub(crate) fn clone_open(file: impl AsFd) -> rustix::io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    open_tree(file, "", flags)
}

/// Maps the ids of a detached tree, if the container has a mapping. `source` names the tree. Only what cannot be mapped
/// is a [`RuntimeError::UserNamespace`].
pub(super) fn map_tree(
    tree: &OwnedFd,
    map: Option<&IdMap>,
    source: impl FnOnce() -> String,
) -> Result<(), RuntimeError> {
    let mapped = map.map_or(Ok(()), |map| map.apply(tree.as_fd()));
    mapped.or_else(|error| match error.kind() {
        io::ErrorKind::Unsupported => Err(RuntimeError::UserNamespace(format!("{}: {error}", source()))),
        _ => Err(error).context(|| format!("mapping the ids of {}", source())),
    })
}

/// Attaches a clone of a mount of the host, so that overlayfs finds it. It is made private: a later mount on it must
/// not appear on the host.
pub(super) fn attach_private(tree: &OwnedFd, path: &Path) -> io::Result<()> {
    set_propagation(tree.as_fd(), PropagationType::Private)?;
    attach_tree(tree, path)
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
pub(super) fn mount_unrestricted(directory: &Path, target: &Path, map: Option<&IdMap>) -> Result<(), RuntimeError> {
    let action = || format!("mounting {}", directory.display());
    let tree = clone_one(directory).context(action)?;
    unrestrict_mount(tree.as_fd()).context(action)?;
    map_tree(&tree, map, || directory.display().to_string())?;
    move_mount(&tree, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).context(action)
}
