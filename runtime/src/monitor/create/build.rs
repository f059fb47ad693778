//! Phase 8: building the container with the engine, and starting its command.

use std::{
    mem,
    os::fd::{AsRawFd, OwnedFd},
    path::PathBuf,
};

use super::{job::Job, join::CgroupsJoined};
use crate::{
    cgroup::{CgroupEvents, Cgroups, DeviceRule, MembershipGuard, Version},
    command::{ConfinedCommand, OwnLabels, raise_hard_limits},
    console_socket::ConsoleSocket,
    engine::{self, BuildRequest, BuiltContainer},
    error::{Context, StartError},
    hooks::{self, HookState},
    monitor::report::CreatedContainer,
    plan::{ContainerPlan, Hook, HookStage},
    process::ProcessRef,
    resctrl::ClassMembership,
    rootfs::{EmptyNamespace, HeldNetwork, Layers, Root, RootExchange},
    selinux::SelinuxLabels,
    spec::CGROUP_DIR,
    user::ResolvedUser,
};

/// Phase 8: the container's first process exists. It builds the container and then waits for its start.
pub(super) struct Built {
    container: BuiltContainer,
    groups: Cgroups,
    device_rules: Option<Vec<DeviceRule>>,
    membership: MembershipGuard,
    events_before: CgroupEvents,
    user: ResolvedUser,
    /// The first process attaches these mount trees when it starts, by their descriptors.
    _trees: Vec<OwnedFd>,
    /// The first process lets binds join the groups of these trees when it starts.
    _peers: Vec<(OwnedFd, String)>,
    /// The handles on host and root stay open as long as the engine works.
    open: (Root, HeldNetwork, Layers),
}

impl CgroupsJoined {
    /// Builds the container.
    pub fn build(self, job: &Job<'_>, plan: &ContainerPlan) -> Result<Built, StartError> {
        let Self { written, membership, events_before, view } = self;
        let paths = written.recorded.paths;
        let dev = paths.dev.iter().map(|tree| (tree.as_raw_fd(), PathBuf::from("/dev")));
        let view_at = view.iter().map(|tree| (tree.as_raw_fd(), PathBuf::from(CGROUP_DIR)));
        let nodes = written.nodes.iter().map(|(place, node)| (node.as_raw_fd(), place.clone()));
        let trees = nodes.chain(view_at).chain(dev).collect();
        let peers = paths.peers.iter().map(|(tree, place)| (tree.as_raw_fd(), place.clone())).collect();
        if plan.id_range().is_some() {
            raise_hard_limits(&written.command.rlimits)?;
        }
        let exchange = root_exchange(job, plan)?;
        let request = BuildRequest {
            id: &plan.id,
            state: &job.task.engine_state(),
            spec: written.spec,
            stdio: written.stdio,
            console_socket: job.console.map(ConsoleSocket::path),
            command: ConfinedCommand {
                trees,
                peers,
                start_hooks: start_hooks(job, plan),
                own_labels: own_labels(plan),
                ends_with_monitor: job.args.layer_group.is_some(),
                build_root: Some(exchange.build_root()),
                ..written.command
            },
            ids: plan.id_range(),
            hooks: plan.has_create_hooks().then_some(job.task),
            in_cgroups: written.recorded.groups.version == Version::V1,
            exchange,
        };
        failpoint::at("creator-before-build");
        Ok(Built {
            container: engine::build(request)?,
            groups: written.recorded.groups,
            device_rules: written.device_rules,
            membership,
            events_before,
            user: paths.user,
            _trees: written.nodes.into_iter().map(|(_, node)| node).chain(view).chain(paths.dev).collect(),
            _peers: paths.peers,
            open: (paths.root, paths.network, paths.layers),
        })
    }
}

impl Built {
    /// Leaves the cgroups, waits until the container is built, restricts the devices, adds the first process to its
    /// class of cache, and lets it go on to the command. If that fails, the first process is killed.
    pub fn start(self, plan: &ContainerPlan, class: Option<ClassMembership>) -> Result<CreatedContainer, StartError> {
        let Self { mut container, groups, device_rules, membership, events_before, user, open, .. } = self;
        // Left to the end of this process, after the answer: closing a detached mount waits for all processors.
        mem::forget(open);
        let init = WaitingInit::new(container.init);
        // The first process works meanwhile.
        let deferred = membership.leave()?;
        container.wait()?;
        if let Some(rules) = device_rules {
            groups.restrict_devices(&rules)?;
        }
        class.map_or(Ok(()), |class| class.add(init.pid))?;
        deferred.write()?;
        failpoint::at("creator-before-start");
        container.start()?;
        failpoint::at("creator-before-answer");
        let private_pid = plan.namespaces.private_pid;
        Ok(CreatedContainer { init: init.release(), user, private_pid, events_before })
    }
}

/// Copies the mounts of this process and of the container's root.
fn root_exchange(job: &Job<'_>, plan: &ContainerPlan) -> Result<RootExchange, StartError> {
    let prepare = || RootExchange::prepare(EmptyNamespace::open(&job.args.empty_mounts)?, &job.rootfs(plan));
    Ok(prepare().context(|| "copying the mounts of the building".to_owned())?)
}

/// The labels that the command sets itself, because it does not inherit them.
fn own_labels(plan: &ContainerPlan) -> OwnLabels {
    match plan.inherits_labels() {
        true => OwnLabels::default(),
        false => OwnLabels {
            selinux: plan.selinux.as_ref().map(SelinuxLabels::of_processes),
            apparmor: plan.security.apparmor.clone(),
        },
    }
}

/// The hooks of the stage `startContainer`, with the container's state.
fn start_hooks(job: &Job<'_>, plan: &ContainerPlan) -> Option<(Vec<Hook>, HookState)> {
    let hooks: Vec<Hook> = hooks::of_stages(&plan.hooks, &[HookStage::StartContainer]).cloned().collect();
    let state = || HookState {
        id: plan.id.to_string(),
        status: "created",
        pid: None,
        bundle: job.task.bundle(),
        annotations: plan.annotations.clone(),
    };
    (!hooks.is_empty()).then(|| (hooks, state()))
}

/// A first process that has no command yet. It is killed when this is dropped, because without a start it would wait
/// for ever.
pub(super) struct WaitingInit {
    pid: i32,
    started: bool,
}

impl WaitingInit {
    pub fn new(pid: i32) -> Self {
        Self { pid, started: false }
    }

    /// The process has started: it stays.
    pub fn release(mut self) -> i32 {
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
