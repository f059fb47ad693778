//! Phase 8 with a runtime of the node: the runtime builds the container and starts its command.

use super::{build::WaitingInit, job::Job, join::CgroupsJoined};
use crate::{
    console_socket::ConsoleSocket,
    error::{Context, StartError},
    installed::InstalledContainer,
    monitor::report::CreatedContainer,
    plan::{ContainerPlan, InstalledRuntime},
};

impl CgroupsJoined {
    /// Builds and starts the container. On version 1 the runtime and all its processes are born in the cgroups.
    pub fn run_installed(
        self,
        job: &Job<'_>,
        plan: &ContainerPlan,
        runtime: &InstalledRuntime,
    ) -> Result<CreatedContainer, StartError> {
        let Self { written, membership, events_before, .. } = self;
        written.recorded.groups.hide_other_hierarchies()?;
        failpoint::at("creator-before-build");
        let container = InstalledContainer::prepare(job.task, plan, runtime)?;
        let console = job.console.map(ConsoleSocket::short_path).transpose();
        let console = console.context(|| "naming the terminal's socket".to_owned())?;
        let init = WaitingInit::new(container.create(written.stdio, console.as_deref())?);
        membership.leave()?.write()?;
        failpoint::at("creator-before-start");
        container.start()?;
        failpoint::at("creator-before-answer");
        let private_pid = plan.namespaces.private_pid;
        Ok(CreatedContainer { init: init.release(), user: written.recorded.paths.user, private_pid, events_before })
    }
}
