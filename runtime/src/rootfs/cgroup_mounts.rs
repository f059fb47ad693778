//! The container's view of its cgroups v1: a tree of mounts that is attached to the container's `/sys` after the
//! engine's mounts.
//!
//! The engine would mount each hierarchy on its own, and would read the table of mounts again for each controller.

use std::{
    fs, io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::mount::{MountFlags, mount};

use super::mount_tree::{attach_tree, clone_tree};
use crate::{
    error::{Context, RuntimeError},
    spec::CgroupView,
    sys::make_private,
};

/// Creates the tree, detached. It is assembled at `directory`, which is created for it, because before Linux 6.15
/// mounts can only be attached to attached mounts. What is attached there stays until the mount namespace ends: an
/// unmount waits for all processors.
pub(crate) fn cgroup_tree(view: &CgroupView<'_>, directory: &Path) -> Result<OwnedFd, RuntimeError> {
    let create = || -> io::Result<OwnedFd> {
        fs::create_dir_all(directory)?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount("tmpfs", directory, "tmpfs", flags, Some(c"mode=755"))?;
        for (name, cgroup) in view.groups {
            attach_tree(&clone_tree(cgroup)?, &directory.join(name))?;
        }
        let tree = clone_tree(directory)?;
        make_private(tree.as_fd(), view.readonly, false)?;
        Ok(tree)
    };
    create().context(|| "making the container's view of its control groups".to_owned())
}
