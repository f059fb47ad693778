//! Phase 5: the cgroups are recorded and made, by a second thread.

use std::{
    path::{Path, PathBuf},
    thread::{self, Scope, ScopedJoinHandle},
};

use super::paths::PathsPrepared;
use crate::{
    cgroup::{self, Cgroups, PreparedCgroups, Version},
    command::{compiled_filter, held_capabilities},
    error::{Context, StartError},
    plan::ContainerPlan,
    state::{CGROUP, TaskDir},
};

/// What a second thread makes while the creator makes the root file system. It depends on the plan alone.
pub(super) struct MadeBeside {
    groups: Cgroups,
    /// The cgroups exist and have their limits.
    prepared: PreparedCgroups,
    /// The compiled system call filter.
    filter: Option<Vec<u8>>,
}

/// The second thread. It ends before the creator joins the cgroups and forks. It uses absolute paths only, because it
/// shares the working directory with the creator, which changes it when it mounts an overlay.
pub(super) type Beside<'scope> = ScopedJoinHandle<'scope, Result<MadeBeside, StartError>>;

impl MadeBeside {
    /// Starts the thread. The creator is already in the mount namespace in which it builds the container: a process
    /// with two threads cannot change it.
    pub fn begin<'scope>(
        scope: &'scope Scope<'scope, '_>,
        task: &'scope TaskDir,
        plan: &'scope ContainerPlan,
    ) -> Result<Beside<'scope>, StartError> {
        let thread = thread::Builder::new().spawn_scoped(scope, || Self::make(task, plan));
        Ok(thread.context(|| "starting a thread".to_owned())?)
    }

    /// Records the cgroups, makes and limits them, and compiles the system call filter. The record exists before the
    /// first cgroup.
    fn make(task: &TaskDir, plan: &ContainerPlan) -> Result<Self, StartError> {
        let groups = Cgroups::locate(&plan.cgroup)?;
        failpoint::at("creator-before-cgroups");
        task.commit(CGROUP, &groups)?;
        groups.create_parents()?;
        cgroup::reset_limits(&groups)?;
        failpoint::at("creator-before-cgroup-join");
        let prepared = PreparedCgroups::prepare(&groups, &plan.cgroup, &plan.resources)?;
        Ok(Self { groups, prepared, filter: compiled_filter(plan, held_capabilities())? })
    }
}

/// Phase 5: the task's directory names the container's cgroups, so the removal of the container finds them.
pub(super) struct CgroupsRecorded {
    pub paths: PathsPrepared,
    pub groups: Cgroups,
}

impl PathsPrepared {
    /// Waits for the second thread. The last part of the result is the compiled system call filter.
    pub fn record_cgroups(
        self,
        beside: Beside<'_>,
    ) -> Result<(CgroupsRecorded, PreparedCgroups, Option<Vec<u8>>), StartError> {
        let made = beside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let MadeBeside { groups, prepared, filter } = made?;
        Ok((CgroupsRecorded { paths: self, groups }, prepared, filter))
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
