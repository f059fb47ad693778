//! What the creator works on.

use std::{
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use crate::{
    command::stacks_attached_mounts_only, console_socket::ConsoleSocket, logs::Outputs, plan::ContainerPlan,
    role::MonitorArgs, state::TaskDir,
};

/// The place of the root and of prepared mounts of a container with a user namespace of its own. It is in the file
/// system that only the creator has. The engine's process is no user of the node: it cannot enter a task's directory.
const OPEN_PLACE: &str = "/.container";

/// The inputs of a creation beside the plan.
pub(in crate::monitor) struct Job<'a> {
    pub args: &'a MonitorArgs,
    pub task: &'a TaskDir,
    pub outputs: &'a Outputs,
    /// The socket for the terminal, if the container has one.
    pub console: Option<&'a ConsoleSocket>,
    /// The pipe to which the first process writes a failure.
    pub report: &'a OwnedFd,
}

impl Job<'_> {
    /// The place of mounted layers, on a kernel that needs them attached.
    pub fn layers(&self, plan: &ContainerPlan) -> Option<PathBuf> {
        let attached = plan.id_range().is_some() && stacks_attached_mounts_only();
        attached.then(|| Path::new(OPEN_PLACE).join("layers"))
    }

    /// The place of the mount of a writable layer that has one, on a kernel that needs it attached.
    pub fn writable_layer(&self, plan: &ContainerPlan) -> Option<PathBuf> {
        stacks_attached_mounts_only().then(|| self.mounts(plan).join("writable-layer"))
    }

    /// The mount point of the root file system.
    pub fn rootfs(&self, plan: &ContainerPlan) -> PathBuf {
        if plan.id_range().is_some() { Path::new(OPEN_PLACE).join("rootfs") } else { self.task.rootfs() }
    }

    /// The directory of prepared mounts.
    pub fn mounts(&self, plan: &ContainerPlan) -> PathBuf {
        if plan.id_range().is_some() { Path::new(OPEN_PLACE).join("mounts") } else { self.task.mounts() }
    }
}
