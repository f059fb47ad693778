//! What a container sees of its cgroups of version 1.

use std::path::{Path, PathBuf};

use crate::{cgroup::Version, plan::ContainerPlan};

/// The directory in which a container finds its cgroups.
pub(crate) const CGROUP_DIR: &str = "/sys/fs/cgroup";

/// The cgroups of version 1 that a container sees.
#[derive(Debug)]
pub(crate) struct CgroupView<'a> {
    /// Names below [`CGROUP_DIR`], and the directories of the cgroups on the host.
    pub groups: &'a [(String, PathBuf)],
    pub readonly: bool,
}

/// The view that is attached after the engine has built the container; `None` if the container has none, or if mounts
/// of the plan are in its place.
pub(crate) fn cgroup_view<'a>(
    plan: &ContainerPlan,
    version: Version,
    groups: &'a [(String, PathBuf)],
) -> Option<CgroupView<'a>> {
    let covered = plan.mounts.iter().any(|mount| {
        let place = Path::new(&mount.destination);
        place.starts_with(CGROUP_DIR) || Path::new(CGROUP_DIR).starts_with(place)
    });
    let shown = version == Version::V1 && !groups.is_empty() && !covered;
    shown.then_some(CgroupView { groups, readonly: !plan.security.privileged })
}
