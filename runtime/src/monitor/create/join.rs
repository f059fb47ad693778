//! Phase 7: joining the container's cgroups.

use std::os::fd::OwnedFd;

use super::{job::Job, spec::SpecWritten};
use crate::{
    cgroup::{CgroupEvents, MembershipGuard, PreparedCgroups},
    error::StartError,
    plan::ContainerPlan,
    rootfs::cgroup_tree,
    spec,
};

/// Phase 7: on cgroup v1, the creator is a member of the container's cgroups.
pub(super) struct CgroupsJoined {
    pub written: SpecWritten,
    /// The membership, which must end before the container starts.
    pub membership: MembershipGuard,
    /// The events that the cgroups had counted before.
    pub events_before: CgroupEvents,
    /// The container's view of its cgroups of version 1, as a detached mount tree.
    pub view: Option<OwnedFd>,
}

impl SpecWritten {
    /// Restricts the devices of the cgroups, and joins them.
    pub fn join_cgroups(
        mut self,
        job: &Job<'_>,
        plan: &ContainerPlan,
        prepared: PreparedCgroups,
    ) -> Result<CgroupsJoined, StartError> {
        let groups = &self.recorded.groups;
        let membership = prepared.enter(groups, self.device_rules.as_deref())?;
        let events_before = groups.events();
        if plan.runtime.is_some() {
            // The bundle has the view and the network, by paths of the host.
            return Ok(CgroupsJoined { written: self, membership, events_before, view: None });
        }
        let view = spec::cgroup_view(plan, groups.version, &self.visible_cgroups);
        let view = view.map(|view| cgroup_tree(&view, &job.mounts(plan).join("groups"))).transpose()?;
        match plan.id_range() {
            Some(_) => self.recorded.paths.network.enter(&mut self.spec)?,
            None => self.recorded.paths.network.name_in(&mut self.spec),
        }
        Ok(CgroupsJoined { written: self, membership, events_before, view })
    }
}
