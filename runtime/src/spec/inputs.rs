//! The facts about host and image on which a spec depends, beside the plan.

use std::path::{Path, PathBuf};

use super::{device::HostDevice, prepared_sources::PreparedSource};
use crate::{capability::CapabilityMask, cgroup::Version, user::ResolvedUser};

/// The inputs of a spec beside the plan.
#[derive(Debug)]
pub(crate) struct SpecInputs<'a> {
    pub user: &'a ResolvedUser,
    pub cgroup_version: Version,
    /// The kernel counts swap per cgroup.
    pub swap_accounting: bool,
    /// Capabilities that this process has.
    pub held: CapabilityMask,
    /// Version of the kernel, for seccomp profiles that depend on it.
    pub kernel: (u32, u32),
    /// The plan's devices as they are on this host; all of the host's for a privileged container.
    pub devices: &'a [HostDevice],
    /// The mount point of the root file system.
    pub rootfs: &'a Path,
    /// The directory of the plan's small files.
    pub files: &'a Path,
    /// The cgroups that the container may read if it has no cgroup namespace of its own, with their names below
    /// /sys/fs/cgroup. On version 2 a single one, without a name.
    pub visible_cgroups: &'a [(String, PathBuf)],
    /// The volumes without a name.
    pub volumes: &'a [PreparedSource],
}
