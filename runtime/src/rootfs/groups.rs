//! The container's view of its groups of version 1: a tree of mounts that is attached to the engine's `/sys` when the engine is done.
//!
//! The engine would make each mount of it in turn, and would find them in the table of mounts that it reads for each controller.

use std::{
    fs, io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::CWD,
    mount::{MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, move_mount, open_tree, unmount},
};

use crate::{
    error::{Context, RuntimeError},
    spec::GroupsView,
    sys::make_private,
};

/// The tree. `folder`, which is made for it, is a place to put it together: only what is attached can be mounted on before Linux 6.15.
pub(crate) fn tree_of_groups(view: &GroupsView<'_>, folder: &Path) -> Result<OwnedFd, RuntimeError> {
    let make = || -> io::Result<OwnedFd> {
        fs::create_dir_all(folder)?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount("tmpfs", folder, "tmpfs", flags, Some(c"mode=755"))?;
        for (name, group) in view.groups {
            let place = folder.join(name);
            fs::create_dir(&place)?;
            let group = open_tree(CWD, group, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)?;
            move_mount(&group, "", CWD, &place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
        }
        let copy = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::AT_RECURSIVE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let tree = open_tree(CWD, folder, copy)?;
        unmount(folder, UnmountFlags::DETACH)?;
        make_private(tree.as_fd(), view.readonly)?;
        Ok(tree)
    };
    make().context(|| "making the container's view of its control groups".to_owned())
}
