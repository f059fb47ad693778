//! Phase 8: building the container with the engine, and starting its command.

use std::os::fd::{AsRawFd, OwnedFd};

use super::{job::Job, join::CgroupsJoined};
use crate::{
    cgroup::{CgroupEvents, Cgroups, DeviceRule, MembershipGuard},
    command::ConfinedCommand,
    engine::{self, BuildRequest, BuiltContainer},
    error::{RuntimeError, StartError},
    monitor::{console::Console, report::CreatedContainer},
    plan::ContainerPlan,
    process::ProcessRef,
    rootfs::{HeldNetwork, Layers, Root},
    spec::CGROUP_DIR,
    user::ResolvedUser,
};

/// Phase 8: the container's first process exists and waits for its start.
pub(super) struct Built {
    container: BuiltContainer,
    groups: Cgroups,
    device_rules: Option<Vec<DeviceRule>>,
    membership: MembershipGuard,
    events_before: CgroupEvents,
    user: ResolvedUser,
    /// The first process attaches these mount trees when it starts, by their descriptors.
    _trees: [Option<OwnedFd>; 2],
    /// The handles on host and root stay open as long as the engine works.
    _open: (Root, HeldNetwork, Layers),
}

impl CgroupsJoined {
    /// Builds the container. If that fails, cgroups that existed before exist again.
    pub fn build(self, job: &Job<'_>, plan: &ContainerPlan) -> Result<Built, StartError> {
        let Self { written, membership, events_before, view } = self;
        let paths = written.recorded.paths;
        let dev = paths.dev.iter().map(|tree| (tree.as_raw_fd(), "/dev"));
        let trees = view.iter().map(|tree| (tree.as_raw_fd(), CGROUP_DIR)).chain(dev).collect();
        let request = BuildRequest {
            id: &plan.id,
            state: &job.task.engine_state(),
            bundle: &job.task.engine_bundle(),
            spec: &written.spec,
            stdio: written.stdio,
            console_socket: job.console.map(Console::path),
            command: ConfinedCommand { trees, ..written.command },
        };
        failpoint::at("creator-before-build");
        let groups = written.recorded.groups;
        match engine::build(request) {
            Ok(container) => Ok(Built {
                container,
                groups,
                device_rules: written.device_rules,
                membership,
                events_before,
                user: paths.user,
                _trees: [view, paths.dev],
                _open: (paths.root, paths.network, paths.layers),
            }),
            Err(error) => {
                groups.recreate_existing()?;
                Err(error)
            }
        }
    }
}

impl Built {
    /// Restricts the devices, leaves the cgroups, and lets the first process go on to the command. If that fails, the
    /// first process is killed.
    pub fn start(mut self, plan: &ContainerPlan) -> Result<CreatedContainer, StartError> {
        let init = WaitingInit { pid: self.container.pid()?, started: false };
        self.restrict_devices()?;
        self.membership.leave()?;
        failpoint::at("creator-before-start");
        self.container.start()?;
        failpoint::at("creator-before-answer");
        let private_pid = plan.namespaces.private_pid;
        Ok(CreatedContainer { init: init.release(), user: self.user, private_pid, events_before: self.events_before })
    }

    fn restrict_devices(&self) -> Result<(), RuntimeError> {
        match &self.device_rules {
            Some(rules) => self.groups.restrict_devices(rules),
            None => Ok(()),
        }
    }
}

/// A first process that waits for its start. It is killed when this is dropped, because without a start it would wait
/// for ever.
struct WaitingInit {
    pid: i32,
    started: bool,
}

impl WaitingInit {
    /// The process has started: it stays.
    fn release(mut self) -> i32 {
        self.started = true;
        self.pid
    }
}

impl Drop for WaitingInit {
    fn drop(&mut self) {
        if !self.started
            && let Ok(process) = ProcessRef::open(self.pid)
        {
            // If it cannot be killed here, the removal of the container kills it.
            drop(process.signal(libc::SIGKILL));
        }
    }
}
