//! The mounts that exist while a container is created.
//!
//! The engine reads its table of mounts several times and copies it for the container, so the cost must not grow with
//! the number of mounts on the host. The creator therefore clones the mounts that it needs, leaves the host's mount
//! namespace for an empty one, and attaches the clones there at the same paths. Later mounts of the host still
//! propagate to them, but not the other way round.

use std::{
    fs::DirBuilder,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::DirBuilderExt,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::CWD,
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, fsconfig_create,
        fsconfig_set_string, fsmount, fsopen, mount_change, move_mount,
    },
    process::{chroot, fchdir},
};

use super::{
    empty_namespace::EmptyNamespace,
    mount_tree::{attach_tree, clone_one, clone_tree},
};
use crate::{
    error::{Context, RuntimeError, StartError, StartErrorKind},
    plan::ContainerPlan,
    state::TaskDir,
    sys::{self, PropagationType, set_propagation},
};

/// The mounts of the host that are cloned with all mounts below them.
const SYSTEM_MOUNTS: [&str; 3] = ["/proc", "/dev", "/sys"];

/// Detached clones of the host's mounts, with the paths at which they will be attached.
#[derive(Debug, Default)]
pub(crate) struct BuildMounts(Vec<(PathBuf, OwnedFd)>);

impl BuildMounts {
    /// Clones the mounts that creating this container needs, except for the sources of its bind mounts. It must be
    /// called in the host's mount namespace.
    pub fn open(task: &TaskDir, data_dir: &Path, plan: &ContainerPlan) -> Result<Self, StartError> {
        let mut mounts = Self::default();
        if plan.has_create_hooks() {
            // They see the node's files, and their mounts in the container's root stay.
            mounts.add(Path::new("/"))?;
            return Ok(mounts);
        }
        for path in SYSTEM_MOUNTS {
            mounts.add(Path::new(path))?;
        }
        mounts.add(data_dir)?;
        // Nothing is mounted below it. A copy with what is below looks at every mount on the same file system, and
        // Nomad makes two for each task.
        mounts.add_copy(task.path(), clone_one)?;
        for layer in plan.all_layers() {
            mounts.add_unless_covered(&layer)?;
        }
        for volume in
            plan.volumes.iter().filter(|volume| !volume.mounted).filter_map(|volume| volume.directory.parent())
        {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(volume);
            made.context(|| format!("making {}", volume.display()))?;
            mounts.add_unless_covered(volume)?;
        }
        for device in &plan.devices {
            mounts
                .add_unless_covered(&device.host_path)
                .map_err(|error| StartError::new(StartErrorKind::MountSource, format!("device {error}")))?;
        }
        // A node that is missing may be described completely.
        for device in plan.described_devices.iter().filter(|device| device.host_path.exists()) {
            mounts
                .add_unless_covered(&device.host_path)
                .map_err(|error| StartError::new(StartErrorKind::MountSource, format!("device {error}")))?;
        }
        Ok(mounts)
    }

    fn add(&mut self, path: &Path) -> Result<(), RuntimeError> {
        self.add_copy(path, clone_tree)
    }

    fn add_copy(
        &mut self,
        path: &Path,
        copy: impl FnOnce(&Path) -> rustix::io::Result<OwnedFd>,
    ) -> Result<(), RuntimeError> {
        let clone = || -> io::Result<OwnedFd> {
            let tree = copy(path)?;
            set_propagation(tree.as_fd(), PropagationType::Slave)?;
            Ok(tree)
        };
        let tree = clone().context(|| path.display().to_string())?;
        self.0.push((path.to_owned(), tree));
        Ok(())
    }

    fn add_unless_covered(&mut self, path: &Path) -> Result<(), RuntimeError> {
        if self.0.iter().any(|(added, _)| path.starts_with(added)) { Ok(()) } else { self.add(path) }
    }

    /// Leaves the host's mount namespace for a copy of it, from which no mount propagates to the host. None of the
    /// clones is needed there.
    pub fn enter_copy_of_host(self) -> Result<(), StartError> {
        drop(self);
        let copied = sys::unshare_mounts()
            .and_then(|()| Ok(mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?));
        Ok(copied.context(|| "copying the host's mount namespace".to_owned())?)
    }

    /// Leaves the host's mount namespace for a copy of the empty one, and attaches these mounts there.
    pub fn enter(self, empty: &EmptyNamespace) -> Result<(), StartError> {
        let enter = || -> io::Result<()> {
            empty.enter()?;
            let (root, mounts) = match self.0.split_first() {
                Some(((path, _), _)) if path != Path::new("/") => (detached_tmpfs()?, &self.0[..]),
                Some(((_, root), others)) => (root.try_clone()?, others),
                None => (detached_tmpfs()?, &[][..]),
            };
            move_mount(&root, "", CWD, "/", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
            // chroot(2), because pivot_root(2) walks through all threads of the host. This process needs no more than
            // chroot.
            fchdir(&root)?;
            chroot(".")?;
            mounts.iter().try_for_each(|(path, tree)| attach_tree(tree, path))
        };
        Ok(enter().context(|| "making the root that the container is built in".to_owned())?)
    }
}

/// Creates an empty detached tmpfs.
fn detached_tmpfs() -> rustix::io::Result<OwnedFd> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(context.as_fd(), "mode", "755")?;
    fsconfig_create(context.as_fd())?;
    let attributes =
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}
