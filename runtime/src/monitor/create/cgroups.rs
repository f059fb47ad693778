//! Phase 5: recording the cgroups.

use std::path::{Path, PathBuf};

use super::{job::Job, paths::PathsPrepared};
use crate::{
    cgroup::{self, Cgroups, Version},
    error::StartError,
    plan::ContainerPlan,
    state::CGROUP,
};

/// Phase 5: the task's directory names the container's cgroups, so the removal of the container finds them.
pub(super) struct CgroupsRecorded {
    pub paths: PathsPrepared,
    pub groups: Cgroups,
}

impl PathsPrepared {
    /// Records the cgroups, makes those above them, and resets limits of an earlier container.
    pub fn record_cgroups(self, job: &Job<'_>, plan: &ContainerPlan) -> Result<CgroupsRecorded, StartError> {
        let groups = Cgroups::locate(&plan.cgroup)?;
        failpoint::at("creator-before-cgroups");
        job.task.commit(CGROUP, &groups)?;
        groups.create_parents()?;
        cgroup::reset_limits(&groups)?;
        Ok(CgroupsRecorded { paths: self, groups })
    }
}

/// The cgroups that the container may read, because programs size themselves by them. On version 2 a cgroup namespace
/// shows them, and a privileged container sees all cgroups.
pub(super) fn visible_cgroups(plan: &ContainerPlan, groups: &Cgroups) -> Vec<(String, PathBuf)> {
    const LOOKED_AT: [&str; 6] = ["memory", "cpu", "cpuacct", "cpuset", "pids", "blkio"];
    if groups.version == Version::V2 {
        let bound = !plan.namespaces.private_cgroup && !plan.security.privileged;
        return groups.members.iter().filter(|_| bound).map(|group| (String::new(), group.path.clone())).collect();
    }
    let path = |name: &&str| match (&plan.cgroup.cpuset_v1, *name) {
        (Some(cpuset), "cpuset") => Some(cpuset.clone()),
        _ => groups.path_of(name).map(Path::to_owned),
    };
    LOOKED_AT.iter().filter_map(|name| Some(((*name).to_owned(), path(name)?))).collect()
}
