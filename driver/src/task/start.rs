//! From a task's configuration to a running command.
//!
//! A start goes through phases: image leased → plan made → own network made, if there is to be one → container started. Each phase holds its own undo, so that a
//! failure or a cancellation anywhere leaves nothing behind: the lease is released unless the container took it over, and
//! the runtime undoes a half-made container itself.

use std::{sync::Arc, time::Duration};

use image_store::{Image, LoadRequest, PullError, PullRequest, Reference};
use network::{AttachRequest, Attachment};
use runtime::{
    Running, StartErrorKind, Status,
    plan::{ContainerId, SeccompProfile},
};
use tokio::sync::watch;

use super::{DriverNetwork, DriverState, TaskError, Tasks, alive::Alive};
use crate::{
    config::{self, SeccompChoice, TaskSpec},
    engine::Engine,
    events::TaskEvents,
    plan::{self, NodeInfo, NomadTask, OwnNetwork, TaskContext, TaskPlan},
};

/// What a start reports.
#[derive(Debug, Clone)]
pub struct Started {
    /// The driver's part of the handle.
    pub state: DriverState,
}

/// Starts a task's container. Gives up with [`TaskError::Cancelled`] when `cancelled` turns true before the container is made.
pub async fn run(
    engine: Arc<Engine>,
    tasks: Tasks,
    task: NomadTask,
    cancelled: watch::Receiver<bool>,
) -> Result<(Started, Alive), TaskError> {
    let container = plan::container_id(&task.id);
    let started = attempt(&engine, tasks, task, container.clone(), cancelled).await;
    if started.is_err() {
        remove_interrupted(&engine, container).await;
    }
    started
}

/// Removes what an interrupted start of the same id left, if this one failed before it came to that: nobody asks for it from now on.
async fn remove_interrupted(engine: &Arc<Engine>, container: ContainerId) {
    let engine = engine.clone();
    let removed = blocking(move || match engine.runtime.status(&container).map_err(TaskError::internal)? {
        Status::Unknown => Ok(()),
        _ => {
            tracing::warn!(%container, "removing what an interrupted start left");
            engine.remove_now(&container)
        }
    });
    if let Err(error) = removed.await {
        tracing::warn!(%error, "what an interrupted start left was not removed");
    }
}

async fn attempt(
    engine: &Arc<Engine>,
    tasks: Tasks,
    task: NomadTask,
    container: ContainerId,
    cancelled: watch::Receiver<bool>,
) -> Result<(Started, Alive), TaskError> {
    let began = std::time::Instant::now();
    let events = engine.events.of_task(&task.id, &task.alloc_id, &task.name);
    // On version 2 the kernel's slow first migration happens while the image is looked up.
    runtime::cgroup::warm_up();
    let spec = config::decode_task(&task.driver_config, engine.policy())?;
    let profile = seccomp_profile(&spec).await?;

    failpoint::at("start-before-lease");
    let lease = lease_image(engine, &spec, &task, &container, (events.clone(), cancelled.clone())).await?;
    let pulled = began.elapsed();

    let node = node_info(engine).await?;
    let context = TaskContext {
        spec: &spec,
        task: &task,
        image: &lease.image,
        node: &node,
        policy: engine.policy(),
        profile: profile.as_ref(),
    };
    let planned = plan::plan_task(&context)?;
    if let Some(reason) = &planned.copy_reason {
        events.emit(format!("Copying the image, which makes the start slow: {reason}"), []);
    }
    for text in &planned.warnings {
        tracing::warn!(task = task.id, "{text}");
        events.emit(text.clone(), []);
    }
    if let Some(warning) = &planned.dns_warning {
        events.emit(warning.clone(), []);
    }
    let mut state = DriverState::new(container, planned.stop_signal, spec.image.clone(), lease.image.digest.clone());
    let memory_limit = planned.container.resources.memory_limit;
    let prepared = began.elapsed();
    failpoint::at("start-before-directory");
    let mut network_ms = None;
    let running = match planned.own_network.clone() {
        None => start_container(engine, tasks, planned, &task.alloc_id).await?,
        Some(own) => {
            let (network, took, running) =
                start_connected(engine, tasks, &task.alloc_id, planned, own, &cancelled).await?;
            state.network = Some(network);
            network_ms = Some(took.as_millis().to_string());
            running
        }
    };
    lease.keep();
    failpoint::at("start-before-answer");

    events.emit(
        format!("Started container from {} ({})", state.image, short_digest(&state.image_digest)),
        [
            ("image", state.image.clone()),
            ("digest", state.image_digest.clone()),
            ("pull_ms", pulled.as_millis().to_string()),
            ("plan_ms", (prepared - pulled).as_millis().to_string()),
            ("start_ms", (began.elapsed() - prepared).as_millis().to_string()),
        ]
        .into_iter()
        .chain(network_ms.map(|took| ("network_ms", took))),
    );
    tracing::info!(
        task = task.id,
        image = state.image,
        digest = state.image_digest,
        pid = running.init.pid,
        pull_ms = pulled.as_millis() as u64,
        plan_ms = (prepared - pulled).as_millis() as u64,
        start_ms = (began.elapsed() - prepared).as_millis() as u64,
        "task started"
    );
    let alive = Alive::new(running, state.container.clone(), memory_limit);
    Ok((Started { state }, alive))
}

fn short_digest(digest: &str) -> &str {
    digest.get(.."sha256:".len() + 12).unwrap_or(digest)
}

/// Holds an image for a container that does not exist yet; dropped, it lets the image go.
struct ImageLease {
    engine: Arc<Engine>,
    container: ContainerId,
    image: Image,
    kept: bool,
}

impl ImageLease {
    /// The container exists now: its removal releases the image.
    fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for ImageLease {
    fn drop(&mut self) {
        if !self.kept
            && let Err(error) = self.engine.store.release(self.container.as_str())
        {
            tracing::warn!(container = %self.container, %error, "image lease not released");
        }
    }
}

async fn lease_image(
    engine: &Arc<Engine>,
    spec: &TaskSpec,
    task: &NomadTask,
    container: &ContainerId,
    (events, mut cancelled): (TaskEvents, watch::Receiver<bool>),
) -> Result<ImageLease, TaskError> {
    let given_up = async move {
        // Nobody could cancel it any more: nobody wants it either.
        drop(cancelled.wait_for(|cancelled| *cancelled).await);
    };
    let reference = spec.image.parse().map_err(|error| TaskError::Invalid(format!("option image: {error}")))?;
    let timeout = Some(spec.image_pull_timeout.unwrap_or(engine.config.image_pull_timeout));
    let ready = match &spec.load {
        Some(path) => {
            events.emit(format!("Loading image from {path}"), []);
            let (task, below) = (task.clone(), path.clone());
            let source = blocking(move || super::load::open(&task, &below)).await?;
            let request = LoadRequest { source, name: format!("archive {path:?}"), reference, timeout };
            engine.store.load_unless(request, container.as_str(), given_up).await
        }
        None => {
            let progress = Arc::new(super::progress::PullEvents::new(events));
            let request = pull_request(engine, spec, reference, timeout);
            engine.store.acquire_unless(request, container.as_str(), progress, given_up).await
        }
    };
    let image = ready.map_err(|error| match error {
        PullError::GivenUp => TaskError::Cancelled,
        error => TaskError::Pull { image: spec.image.clone(), error },
    })?;
    Ok(ImageLease { engine: engine.clone(), container: container.clone(), image, kept: false })
}

fn pull_request(engine: &Engine, spec: &TaskSpec, reference: Reference, timeout: Option<Duration>) -> PullRequest {
    PullRequest {
        reference,
        credentials: spec.auth.clone(),
        soft_fail: spec.auth_soft_fail,
        force: spec.force_pull,
        timeout,
        inactivity: engine.config.pull_activity_timeout,
    }
}

async fn node_info(engine: &Arc<Engine>) -> Result<NodeInfo, TaskError> {
    let engine = engine.clone();
    blocking(move || Ok(engine.node_info())).await
}

async fn seccomp_profile(spec: &TaskSpec) -> Result<Option<SeccompProfile>, TaskError> {
    let Some(SeccompChoice::File(path)) = spec.security.seccomp.clone() else { return Ok(None) };
    blocking(move || super::profile::read(&path).map(Some)).await
}

/// Makes the task's own network, then the container in it. When that fails, the network goes.
async fn start_connected(
    engine: &Arc<Engine>,
    tasks: Tasks,
    alloc_id: &str,
    planned: TaskPlan,
    own: OwnNetwork,
    cancelled: &watch::Receiver<bool>,
) -> Result<(DriverNetwork, Duration, Running), TaskError> {
    let container = planned.container.id.clone();
    let network = |attachment: &Attachment| DriverNetwork {
        address: own.address(attachment).map(|address| address.to_string()).unwrap_or_default(),
        ports: own.ports.clone(),
        auto_advertise: own.auto_advertise(),
    };
    let began = std::time::Instant::now();
    let attachment = connect(engine, tasks.clone(), planned.clone(), own.request.clone(), alloc_id).await?;
    let took = began.elapsed();
    // The content of /etc/hosts depends on the container's addresses.
    let started = match planned.with_attachment(&attachment) {
        Err(error) => Err(error.into()),
        // In a crowd the network may have taken a while.
        Ok(_) if *cancelled.borrow() => Err(TaskError::Cancelled),
        Ok(planned) => start_container(engine, tasks, planned, alloc_id).await,
    };
    if started.is_err() {
        let engine = engine.clone();
        let released = blocking(move || Ok(engine.networks.release(container.as_str())?)).await;
        if let Err(error) = released {
            tracing::warn!(%error, "the network of a task that did not start was not removed");
        }
    }
    started.map(|running| (network(&attachment), took, running))
}

async fn connect(
    engine: &Arc<Engine>,
    tasks: Tasks,
    planned: TaskPlan,
    request: AttachRequest,
    alloc_id: &str,
) -> Result<Attachment, TaskError> {
    let (engine, prefix) = (engine.clone(), plan::alloc_prefix(alloc_id));
    blocking(move || {
        // What would fail later fails before anything is made; and a predecessor may hold the address.
        planned.check_confined().map_err(TaskError::Confinement)?;
        if let Some(prefix) = prefix {
            remove_predecessors(&engine, &tasks, &planned, &prefix)?;
        }
        Ok(engine.networks.attach(planned.container.id.as_str(), &request)?)
    })
    .await
}

async fn start_container(
    engine: &Arc<Engine>,
    tasks: Tasks,
    planned: TaskPlan,
    alloc_id: &str,
) -> Result<Running, TaskError> {
    let (engine, prefix) = (engine.clone(), plan::alloc_prefix(alloc_id));
    blocking(move || {
        planned.check_confined().map_err(TaskError::Confinement)?;
        if let Some(prefix) = prefix {
            remove_predecessors(&engine, &tasks, &planned, &prefix)?;
        }
        match engine.runtime.start(&planned.container) {
            // The id is ours alone, so this is what a start left that was cut short by the plugin's death: Nomad asks again for
            // the same id, and knows nothing of the first one.
            Err(error) if error.kind == StartErrorKind::Exists => {
                tracing::warn!(container = %planned.container.id, "removing what an interrupted start left");
                let removed = engine.runtime.destroy(&planned.container.id);
                removed.map_err(TaskError::internal)?;
                Ok(engine.runtime.start(&planned.container)?)
            }
            result => Ok(result?),
        }
    })
    .await
}

/// Removes a container of the same task that no handle names: its start's answer got lost because plugin and agent died
/// together. The agent that came after starts the task afresh, under a new id but in the same control group.
fn remove_predecessors(engine: &Engine, tasks: &Tasks, planned: &TaskPlan, prefix: &str) -> Result<(), TaskError> {
    let others = engine.runtime.sharing_group(&planned.container, prefix).map_err(TaskError::internal)?;
    for container in others.iter().filter(|container| !tasks.knows(container)) {
        tracing::warn!(%container, "removing what an earlier start of the same task left");
        engine.remove_now(container)?;
    }
    Ok(())
}

/// Runs blocking work beside the async threads.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, TaskError> + Send + 'static,
) -> Result<T, TaskError> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(TaskError::Internal(format!("a worker thread ended early: {error}"))))
}
