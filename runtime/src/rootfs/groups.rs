//! The container's view of its groups of version 1: a tree of mounts that is attached to the engine's `/sys` when the engine is done.
//!
//! The engine would make each mount of it in turn, and would find them in the table of mounts that it reads for each controller.

use std::{
    fs, io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::tree;
use crate::{
    error::{Context, RuntimeError},
    spec::GroupsView,
    sys::make_private,
};

/// The tree. `directory`, which is made for it, is a place to put it together: only what is attached can be mounted on before Linux 6.15.
pub(crate) fn tree_of_groups(view: &GroupsView<'_>, directory: &Path) -> Result<OwnedFd, RuntimeError> {
    let make = || -> io::Result<OwnedFd> {
        fs::create_dir_all(directory)?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount("tmpfs", directory, "tmpfs", flags, Some(c"mode=755"))?;
        for (name, group) in view.groups {
            tree::attach(&tree::copy(group)?, &directory.join(name))?;
        }
        let tree = tree::copy(directory)?;
        unmount(directory, UnmountFlags::DETACH)?;
        make_private(tree.as_fd(), view.readonly)?;
        Ok(tree)
    };
    make().context(|| "making the container's view of its control groups".to_owned())
}
