//! The network namespace that a container joins.

use std::{
    fs, io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

use oci_spec::runtime::{LinuxNamespaceType, Spec};
use rustix::{
    fs::{Mode, OFlags, fstatfs, open},
    mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsmount, fsopen, move_mount},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

use super::root::Root;
use crate::{
    error::{Context, RuntimeError, StartError},
    plan::Network,
};

/// The type of the file system of namespaces (linux/magic.h).
const NSFS_MAGIC: u64 = 0x6e73_6673;

/// A network namespace that the container joins. It is held open, because its path does not exist in the mount
/// namespace in which the container is created.
pub(crate) struct HeldNetwork(Option<OwnedFd>);

impl HeldNetwork {
    /// Opens the namespace of the plan, if it names one. It must be called in the host's mount namespace. A removed
    /// namespace can leave its file behind, empty, and the error of the engine would only be "Invalid argument".
    pub fn open(network: &Network) -> Result<Self, StartError> {
        let Network::Path(path) = network else { return Ok(Self(None)) };
        let opened = open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty());
        let problem = match opened.and_then(|held| Ok((fstatfs(&held)?, held))) {
            Ok((file_system, held)) if file_system.f_type as u64 == NSFS_MAGIC => return Ok(Self(Some(held))),
            Ok(_) => "the file at this path is not a namespace".to_owned(),
            Err(error) => io::Error::from(error).to_string(),
        };
        Err(StartError::invalid(format!(
            "the network namespace {path:?} is gone: {problem}. Starting the task again does not help until the \
             creator of the namespace creates it again"
        )))
    }

    /// Mounts the sysfs of the network on the root's /sys, read-only. A process in another user namespace may not mount
    /// the sysfs of a network that belongs to the node.
    pub fn mount_sysfs(&self, root: &Root) -> Result<(), RuntimeError> {
        let mount = || -> io::Result<()> {
            let context = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
            fsconfig_create(&context)?;
            let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
                | MountAttrFlags::MOUNT_ATTR_NODEV
                | MountAttrFlags::MOUNT_ATTR_NOEXEC
                | MountAttrFlags::MOUNT_ATTR_RDONLY;
            let sysfs = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
            let target = root.resolve("/sys".as_ref(), OFlags::PATH | OFlags::DIRECTORY)?;
            let by_descriptors = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
            Ok(move_mount(&sysfs, "", &target, "", by_descriptors)?)
        };
        self.inside(mount).context(|| "mounting the container's /sys".to_owned())
    }

    /// Sets kernel parameters of the network, in the form `net.core.somaxconn`.
    pub fn set_parameters<'a>(
        &self,
        parameters: impl Iterator<Item = (&'a String, &'a String)>,
    ) -> Result<(), StartError> {
        for (name, value) in parameters {
            let file = format!("/proc/sys/{}", name.replace('.', "/"));
            self.inside(|| fs::write(&file, value))
                .map_err(|error| StartError::invalid(format!("sysctl {name} = {value}: {error}")))?;
        }
        Ok(())
    }

    /// Moves this process to the namespace, so that its forks are in it, and takes the namespace out of the spec. A
    /// process in another user namespace may not join a network that belongs to the node.
    pub fn enter(&self, spec: &mut Spec) -> Result<(), RuntimeError> {
        let Some(held) = &self.0 else { return Ok(()) };
        enter(held).context(|| "joining the network namespace".to_owned())?;
        if let Some(list) = spec.linux_mut().as_mut().and_then(|linux| linux.namespaces_mut().as_mut()) {
            list.retain(|namespace| namespace.typ() != LinuxNamespaceType::Network);
        }
        Ok(())
    }

    /// Does `action` in the network namespace. Other threads stay in theirs.
    fn inside<T>(&self, action: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let Some(held) = &self.0 else { return action() };
        let own = open("/proc/self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        enter(held)?;
        let result = action();
        enter(&own)?;
        result
    }

    /// Sets the path of the namespace in the spec to the descriptor, which the engine's processes inherit.
    pub fn name_in(&self, spec: &mut Spec) {
        let Some(held) = &self.0 else { return };
        let namespaces = spec.linux_mut().iter_mut().flat_map(|linux| linux.namespaces_mut().iter_mut().flatten());
        for namespace in namespaces.filter(|namespace| namespace.path().is_some()) {
            namespace.set_path(Some(format!("/proc/self/fd/{}", held.as_raw_fd()).into()));
        }
    }
}

fn enter(namespace: &OwnedFd) -> io::Result<()> {
    Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
}
