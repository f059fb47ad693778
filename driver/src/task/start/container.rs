//! The later phases of a start: the container is planned, the host prepared, the network attached, the command
//! executed.

use std::{
    os::fd::AsFd,
    time::{Duration, Instant},
};

use image_store::LayerGroup;
use network::Attachment;
use runtime::{Running, StartError, StartErrorKind, StartOptions};

use super::{docker_volumes, image::Leased, interfaces, logs::LogDirectoryInMaking, request::StartRequest};
use crate::{
    blocking::blocking,
    config::UserNamespaceMode,
    error::TaskError,
    events::Content,
    node::Node,
    plan::{self, OwnNetwork, TaskContext, TaskPlan},
    task::{DriverNetwork, DriverState, registry::Tasks, running::RunningContainer},
};

/// A start with mounted volumes may take this many times as long as a mount: it may fill a volume with the image's
/// files.
const STARTS_PER_MOUNT: u32 = 10;

/// A task with a plan for its container.
pub struct Planned<'a> {
    leased: Leased<'a>,
    plan: TaskPlan,
    /// The duration of the phases until now.
    plan_end: Duration,
}

/// A task with checked host paths. No container of an earlier start of the same task is left.
pub struct Prepared<'a>(Planned<'a>);

/// A task whose volumes with options are mounted.
pub struct Mounted<'a>(Planned<'a>);

/// A task with its own network attached, if it is to have one, and with the node's interfaces that it gets.
pub struct Attached<'a> {
    planned: Planned<'a>,
    network: Option<TaskNetwork>,
}

/// A task with a running command. The container holds the image and the network from now on.
pub struct Started<'a> {
    request: &'a StartRequest,
    state: DriverState,
    container: RunningContainer,
    timings: Timings,
}

/// The network that belongs to one task.
struct TaskNetwork {
    attachment: Attachment,
    attach_time: Duration,
}

/// The durations that the event "Started container" reports.
struct Timings {
    pull: Duration,
    plan: Duration,
    start: Duration,
    network: Option<Duration>,
}

impl<'a> Planned<'a> {
    /// Plans the container, and emits what the plan has to say to the job's author.
    pub async fn plan(leased: Leased<'a>) -> Result<Self, TaskError> {
        let request = leased.request;
        let (node, spec) = (request.node.clone(), leased.spec.clone());
        let host_network = plan::uses_host_network(&leased.spec, &request.task, request.node.policy());
        let node = blocking(move || node.info(host_network, &spec)).await?;
        let plan = plan::plan_task(&TaskContext {
            spec: &leased.spec,
            task: &request.task,
            image: leased.image.image(),
            mounted_images: leased.image.mounted(),
            node: &node,
            policy: request.node.policy(),
            profile: leased.profile.as_ref(),
            edits: leased.edits.as_ref(),
        })?;
        emit_warnings(request, &plan);
        Ok(Self { leased, plan, plan_end: request.elapsed() })
    }

    /// Checks the host paths, waits for the log directory, and removes the containers of earlier starts of the same
    /// task: they may hold its address.
    pub async fn prepare(self, logs: &mut LogDirectoryInMaking) -> Result<Prepared<'a>, TaskError> {
        failpoint::at("start-before-directory");
        logs.finish().await?;
        let request = self.leased.request;
        docker_volumes::take_over(request, &self.plan).await?;
        let (node, tasks, plan) = (request.node.clone(), request.tasks.clone(), self.plan);
        let alloc = request.task.alloc_id.clone();
        let prefix = plan::alloc_prefix(&alloc);
        let connected = request.task.hosts_entry.as_ref().is_some_and(|entry| !entry.address.is_empty());
        let unconnected = node.config.group_networks && !connected;
        let prepared = blocking(move || {
            plan.check_confined().map_err(TaskError::Confinement)?;
            if let Some(prefix) = prefix {
                remove_predecessors(&node, &tasks, &plan, &prefix)?;
            }
            if let Some(path) = plan.group_namespace.as_deref().filter(|_| unconnected) {
                node.groups.restore(&alloc, path)?;
            }
            let group = plan.group_namespace.as_deref().map(network::prepare_group);
            Ok(match group {
                Some(group) => (plan.with_group_address(group.address), group.ready),
                None => (plan, Ok(())),
            })
        });
        let (plan, ready) = prepared.await?;
        if let Err(error) = ready {
            // Only some programs need it, and the task may be none of them.
            tracing::warn!(task = request.task.id, %error, "the group's network is not as docker's");
            request.events.emit(Content::GroupNetworkIncomplete { problem: error.to_string() });
        }
        Ok(Prepared(Planned { plan, ..self }))
    }
}

impl<'a> Prepared<'a> {
    /// Mounts the volumes with options that no other task has mounted. A server that does not answer delays only this
    /// start.
    pub async fn mount(self) -> Result<Mounted<'a>, TaskError> {
        let Self(planned) = self;
        let request = planned.leased.request;
        for volume in planned.plan.mounted_volumes.clone() {
            request.events.emit(Content::MountingVolume { options: volume.options.to_string() });
            let (node, container) = (request.node.clone(), request.container.clone());
            let mounted = blocking(move || node.mount_volume(&volume, &container)).await;
            // The mount may have taken long.
            let cancelled = if request.is_cancelled() { Err(TaskError::Cancelled) } else { Ok(()) };
            if let Err(error) = mounted.and(cancelled) {
                planned.release_volumes().await;
                return Err(error);
            }
        }
        Ok(Mounted(planned))
    }
}

impl Planned<'_> {
    /// Releases the mounted volumes of a task that does not start.
    async fn release_volumes(&self) {
        if self.plan.mounted_volumes.is_empty() {
            return;
        }
        let request = self.leased.request;
        let (node, container) = (request.node.clone(), request.container.clone());
        if let Err(error) = blocking(move || node.release_volumes(&container)).await {
            tracing::warn!(%error, "the volumes of a task that did not start were not released");
        }
    }
}

impl<'a> Mounted<'a> {
    /// Attaches the task's own network, if it is to have one, and moves interfaces of the node there, if a device of
    /// the task has some.
    pub async fn attach(self) -> Result<Attached<'a>, TaskError> {
        self.attach_own_network().await?.lend().await
    }

    /// Attaches the task's own network, and completes the plan with the addresses.
    async fn attach_own_network(self) -> Result<Attached<'a>, TaskError> {
        let Self(planned) = self;
        let Some(own) = planned.plan.own_network.clone() else { return Ok(Attached { planned, network: None }) };
        let began = Instant::now();
        let request = planned.leased.request;
        let (node, container) = (request.node.clone(), request.container.clone());
        let attached = blocking(move || Ok(node.networks.attach(container.as_str(), &own.request)?)).await;
        let attachment = match attached {
            Ok(attachment) => attachment,
            Err(error) => {
                planned.release_volumes().await;
                return Err(error);
            }
        };
        let plan = planned.plan.clone().with_attachment(&attachment);
        let network = Some(TaskNetwork { attachment, attach_time: began.elapsed() });
        let attached = Attached { planned, network };
        match plan {
            Err(error) => Err(attached.undo(error.into()).await),
            // The attachment may have taken long.
            Ok(_) if request.is_cancelled() => Err(attached.undo(TaskError::Cancelled).await),
            Ok(plan) => Ok(Attached { planned: Planned { plan, ..attached.planned }, ..attached }),
        }
    }
}

impl<'a> Attached<'a> {
    /// Moves interfaces of the node to the task's network.
    async fn lend(self) -> Result<Self, TaskError> {
        let Some(lend) = self.planned.plan.lend.clone() else { return Ok(self) };
        let request = self.planned.leased.request;
        let (node, tasks, container) = (request.node.clone(), request.tasks.clone(), request.container.clone());
        match blocking(move || interfaces::lend(&node, &tasks, &container, &lend)).await {
            Ok(()) => Ok(self),
            Err(error) => Err(self.undo(error).await),
        }
    }

    /// Starts the container.
    pub async fn start(self) -> Result<Started<'a>, TaskError> {
        let request = self.planned.leased.request;
        let (node, plan, container) =
            (request.node.clone(), self.planned.plan.container.clone(), request.container.clone());
        let prefix = plan::alloc_prefix(&request.task.alloc_id);
        let group = self.planned.leased.image.group().cloned();
        let start = move || {
            let started = start_in_group(&node, plan, prefix.as_deref(), group.as_ref())?;
            // The layers may have become complete during the start.
            if group.is_some() {
                node.end_guard(&container);
            }
            Ok(started)
        };
        match blocking(start).await {
            Ok((running, obstacle)) => {
                if let Some(obstacle) = obstacle {
                    emit_userns_obstacle(request, &obstacle);
                }
                Ok(self.started(running))
            }
            Err(error) => Err(self.undo(error).await),
        }
    }

    /// Removes the network and releases the volumes because of an error, and returns that error.
    async fn undo(self, error: TaskError) -> TaskError {
        self.planned.release_volumes().await;
        if self.network.is_some() || self.planned.plan.lend.is_some() {
            let request = self.planned.leased.request;
            let (node, container) = (request.node.clone(), request.container.clone());
            let removed = blocking(move || Ok(node.networks.release(container.as_str())?)).await;
            if let Err(error) = removed {
                tracing::warn!(%error, "the network of a task that did not start was not removed");
            }
        }
        error
    }

    fn started(self, running: Running) -> Started<'a> {
        let Planned { leased: Leased { request, spec, image, pull_time, .. }, plan, plan_end, .. } = self.planned;
        let digest = image.image().digest.clone();
        let mut state = DriverState::new(request.container.clone(), plan.stop_signal, spec.image, digest);
        let network = self.network.as_ref().zip(plan.own_network.as_ref());
        state.network = network.map(|(network, own)| handle_network(network, own));
        image.keep();
        failpoint::at("start-before-answer");
        Started {
            container: RunningContainer::new(running, request.container.clone(), plan.container.resources.memory_limit),
            state,
            timings: Timings {
                pull: pull_time,
                plan: plan_end - pull_time,
                start: request.elapsed() - plan_end,
                network: self.network.map(|network| network.attach_time),
            },
            request,
        }
    }
}

impl Started<'_> {
    /// Reports the start to the job's author and in the log.
    pub fn report(self) -> (DriverState, RunningContainer) {
        let Self { request, state, container, timings } = self;
        let milliseconds = |duration: Duration| duration.as_millis().to_string();
        request.events.emit(Content::Started {
            short_digest: short_digest(&state.image_digest).to_owned(),
            image: state.image.clone(),
            digest: state.image_digest.clone(),
            pull_ms: milliseconds(timings.pull),
            plan_ms: milliseconds(timings.plan),
            start_ms: milliseconds(timings.start),
            network_ms: timings.network.map(milliseconds).unwrap_or_default(),
        });
        tracing::info!(
            task = request.task.id,
            image = state.image,
            digest = state.image_digest,
            pid = container.processes.init.pid,
            pull_ms = timings.pull.as_millis() as u64,
            plan_ms = timings.plan.as_millis() as u64,
            start_ms = timings.start.as_millis() as u64,
            "task started"
        );
        (state, container)
    }
}

fn emit_warnings(request: &StartRequest, plan: &TaskPlan) {
    if let Some(reason) = &plan.copy_reason {
        request.events.emit(Content::Copying { reason: reason.clone() });
    }
    for warning in &plan.warnings {
        tracing::warn!(task = request.task.id, "{warning}");
        request.events.emit(warning.clone());
    }
    if let Some(obstacle) = &plan.userns_obstacle {
        emit_userns_obstacle(request, obstacle);
    }
    if let Some(warning) = &plan.dns_warning {
        request.events.emit(warning.clone());
    }
}

/// Reports why a task has no user namespace of its own, although the operator wants that.
fn emit_userns_obstacle(request: &StartRequest, obstacle: &str) {
    tracing::warn!(task = request.task.id, obstacle, "the task runs in the node's user namespace");
    request.events.emit(Content::NodeUserNamespace { reason: obstacle.to_owned() });
}

/// The network as the task's handle describes it.
fn handle_network(network: &TaskNetwork, own: &OwnNetwork) -> DriverNetwork {
    DriverNetwork {
        address: own.address(&network.attachment).map(|address| address.to_string()).unwrap_or_default(),
        ports: own.ports.clone(),
        auto_advertise: own.auto_advertise(),
    }
}

/// Starts the container. It gets the names of the group's other containers, and they get its names. Blocks.
fn start_in_group(
    node: &Node,
    mut plan: runtime::plan::ContainerPlan,
    prefix: Option<&str>,
    group: Option<&LayerGroup>,
) -> Result<(Running, Option<String>), TaskError> {
    let Some(prefix) = prefix else { return start_container(node, &plan, group) };
    let named = node.runtime.add_names(&mut plan, prefix).map_err(TaskError::internal)?;
    let started = start_container(node, &plan, group)?;
    if (named || !plan.shared_names.is_empty())
        && let Err(error) = node.runtime.share_names(prefix)
    {
        tracing::warn!(container = %plan.id, %error, "the group's tasks do not find each other's names");
    }
    Ok(started)
}

/// Starts the container. Removes an existing container of the same id first: an id belongs to one task, so an
/// interrupted start left that container, and the agent knows nothing of it. If the container cannot have a user
/// namespace of its own, it is started in the node's, unless the operator requires one. The second part of the result
/// is the reason. Blocks.
fn start_container(
    node: &Node,
    plan: &runtime::plan::ContainerPlan,
    group: Option<&LayerGroup>,
) -> Result<(Running, Option<String>), TaskError> {
    let options = StartOptions {
        limit: plan.has_mounted_volumes().then(|| node.policy().volume_timeout * STARTS_PER_MOUNT),
        layer_group: group.map(AsFd::as_fd),
    };
    let start = || match node.policy().userns.mode {
        UserNamespaceMode::Auto => node.runtime.start_in_any_user_namespace(plan, options),
        UserNamespaceMode::Off | UserNamespaceMode::Require => {
            node.runtime.start_with(plan, options).map(|running| (running, None))
        }
    };
    match start() {
        Err(error) if error.kind == StartErrorKind::Exists => {
            tracing::warn!(container = %plan.id, "removing what an interrupted start left");
            node.runtime.destroy(&plan.id).map_err(TaskError::internal)?;
            Ok(start()?)
        }
        Err(error) if error.kind == StartErrorKind::UserNamespace => {
            let message = format!("no user namespace of its own: {error}; {}", plan::USER_NAMESPACE_REMEDY);
            Err(StartError { message, ..error }.into())
        }
        result => Ok(result?),
    }
}

/// Removes containers of the same task that no handle names: plugin and agent died together, so the answer of their
/// start was lost. The next agent starts the task under a new id, but in the same control group. Blocks.
fn remove_predecessors(node: &Node, tasks: &Tasks, plan: &TaskPlan, prefix: &str) -> Result<(), TaskError> {
    let others = node.runtime.sharing_group(&plan.container, prefix).map_err(TaskError::internal)?;
    for container in others.iter().filter(|container| !tasks.knows(container)) {
        tracing::warn!(%container, "removing what an earlier start of the same task left");
        node.remove_container_now(container)?;
    }
    Ok(())
}

/// The first twelve hexadecimal digits, with the algorithm.
fn short_digest(digest: &str) -> &str {
    digest.get(.."sha256:".len() + 12).unwrap_or(digest)
}
