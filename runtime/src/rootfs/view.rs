//! The little of the host that is there while a container is built.
//!
//! Nothing of this may cost more when more runs on the host, and the engine reads its table of mounts several times and copies it for the
//! container. So the creator takes hold of what it needs, leaves the host's mount namespace for an empty one, and puts that in the same places
//! there. Later changes of the host still come, nothing goes back. On version 1 the control groups are taken away before
//! the engine begins: it shall find none to move its processes to ([`MembershipGuard`](crate::cgroup::MembershipGuard)).

use std::{
    fs::{self, DirBuilder},
    io,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::DirBuilderExt,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, Mode, OFlags, fstatfs, open},
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags, fsconfig_create, fsconfig_set_string,
        fsmount, fsopen, move_mount, unmount,
    },
    process::{chroot, fchdir},
};

use super::{empty::EmptyMounts, tree};
use crate::{
    cgroup,
    error::{Context, RuntimeError, StartError, StartErrorKind},
    plan::{ContainerPlan, Network},
    spec::{GROUPS, libcontainer_spec::Spec},
    state::TaskDir,
    sys::{PropagationType, set_propagation},
};

/// What is taken whole.
const WHOLE: [&str; 3] = ["/proc", "/dev", "/sys"];

/// Copies of mounts that are attached nowhere yet, with the places that they are meant for.
#[derive(Debug, Default)]
pub(crate) struct View(Vec<(PathBuf, OwnedFd)>);

impl View {
    /// Takes hold of what building this container needs, but for the sources of its mounts. To be called in the host's mount namespace.
    pub fn open(task: &TaskDir, data_dir: &Path, plan: &ContainerPlan) -> Result<Self, StartError> {
        let mut view = Self::default();
        for path in WHOLE {
            view.take(Path::new(path))?;
        }
        view.take(data_dir)?;
        view.take(task.path())?;
        for layer in &plan.root.layers {
            view.take_if_missing(layer)?;
        }
        for volume in plan.volumes.iter().filter_map(|volume| volume.directory.parent()) {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(volume);
            made.context(|| format!("making {}", volume.display()))?;
            view.take_if_missing(volume)?;
        }
        for device in &plan.devices {
            view.take_if_missing(&device.host_path)
                .map_err(|error| StartError::new(StartErrorKind::MountSource, format!("device {error}")))?;
        }
        Ok(view)
    }

    fn take(&mut self, path: &Path) -> Result<(), RuntimeError> {
        let take = || -> io::Result<OwnedFd> {
            let tree = tree::copy(path)?;
            set_propagation(tree.as_fd(), PropagationType::Slave)?;
            Ok(tree)
        };
        let tree = take().context(|| path.display().to_string())?;
        self.0.push((path.to_owned(), tree));
        Ok(())
    }

    fn take_if_missing(&mut self, path: &Path) -> Result<(), RuntimeError> {
        if self.0.iter().any(|(there, _)| path.starts_with(there)) { Ok(()) } else { self.take(path) }
    }

    /// Leaves the host's mount namespace for one in which there is this alone.
    pub fn enter(self, empty: &EmptyMounts) -> Result<(), StartError> {
        let enter = || -> io::Result<()> {
            empty.enter()?;
            let root = memory_file_system()?;
            move_mount(&root, "", CWD, "/", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
            // Not pivot_root(2), which looks at every thread of the host, to do what is nothing for one that has just come here.
            fchdir(&root)?;
            chroot(".")?;
            // What is there when `/sys` is taken away: a file system in memory is also how a host with version 1 looks here.
            fs::create_dir_all(GROUPS)?;
            self.0.iter().try_for_each(|(path, tree)| tree::attach(tree, path))
        };
        Ok(enter().context(|| "making the root that the container is built in".to_owned())?)
    }
}

/// An empty file system, attached nowhere.
fn memory_file_system() -> rustix::io::Result<OwnedFd> {
    let system = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(system.as_fd(), "mode", "755")?;
    fsconfig_create(system.as_fd())?;
    let attributes =
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(system.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// Takes away what the engine must not see. Sources of the spec's mounts that go with it are bound in `directory` and named there.
pub(crate) fn hide_from_engine(mode: cgroup::Version, spec: &mut Spec, directory: &Path) -> Result<(), RuntimeError> {
    // The engine makes the container's group of version 2, which is then mounted from there.
    if mode == cgroup::Version::V2 {
        return Ok(());
    }
    let mut hide = || -> io::Result<()> {
        let binds = spec.mounts_mut().iter_mut().flatten().filter(|mount| mount.typ().as_deref() == Some("bind"));
        for (index, bind) in binds.enumerate() {
            let Some(source) = bind.source().as_deref().filter(|source| source.starts_with("/sys")) else { continue };
            // By number: the engine takes a mount of groups for a hierarchy if it is named like one.
            let place = directory.join(format!("sys-{index}"));
            tree::attach(&tree::copy(source)?, &place)?;
            bind.set_source(Some(place));
        }
        Ok(unmount("/sys", UnmountFlags::DETACH)?)
    };
    hide().context(|| "hiding the control groups".to_owned())
}

/// A network namespace that is joined, held open while its path is out of sight.
pub(crate) struct HeldNetwork(Option<OwnedFd>);

impl HeldNetwork {
    /// To be called in the host's mount namespace. When a namespace is taken away its name may stay behind, as an empty file, of which the
    /// engine would only say that an argument is invalid.
    pub fn open(network: &Network) -> Result<Self, StartError> {
        /// `NSFS_MAGIC` of linux/magic.h.
        const NSFS: u64 = 0x6e73_6673;
        let Network::Path(path) = network else { return Ok(Self(None)) };
        let opened = open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty());
        let problem = match opened.and_then(|held| Ok((fstatfs(&held)?, held))) {
            Ok((system, held)) if system.f_type as u64 == NSFS => return Ok(Self(Some(held))),
            Ok(_) => "the file that is there is no namespace".to_owned(),
            Err(error) => io::Error::from(error).to_string(),
        };
        Err(StartError::invalid(format!(
            "the network namespace {path:?} is gone: {problem}. Starting again does not help until whoever made it makes it anew"
        )))
    }

    /// Lets the spec name the descriptor, which the engine's processes inherit.
    pub fn name_in(&self, spec: &mut Spec) {
        let Some(held) = &self.0 else { return };
        let all = spec.linux_mut().iter_mut().flat_map(|linux| linux.namespaces_mut().iter_mut().flatten());
        for namespace in all.filter(|namespace| namespace.path().is_some()) {
            namespace.set_path(Some(format!("/proc/self/fd/{}", held.as_raw_fd()).into()));
        }
    }
}
