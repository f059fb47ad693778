//! From a task's configuration to a running command, and back from a state folder to a task that is known again.
//!
//! A start goes through phases: image leased → plan made → own network made, if there is to be one → container started. Each phase holds its own undo, so that a
//! failure or a cancellation anywhere leaves nothing behind: the lease is released unless the container took it over, and
//! the runtime undoes a half-made container itself.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use image_store::{Image, LoadRequest, PullError, PullRequest, Reference};
use network::{Attachment, Choice, Wish};
use runtime::{
    ExitRecord, Running, StartErrorKind, Status,
    plan::{ContainerId, SeccompProfile},
};
use tokio::{io::Interest, sync::watch};

use super::{DriverNetwork, DriverState, Exit, TaskError, Tasks};
use crate::{
    config::{self, SeccompChoice, TaskSpec},
    engine::Engine,
    events::TaskEvents,
    plan::{self, Attached, NodeFacts, NomadTask, OwnNetwork, TaskContext, TaskPlan},
    sys,
};

/// What a start reports.
#[derive(Debug, Clone)]
pub struct Started {
    /// The driver's part of the handle.
    pub state: DriverState,
}

/// A container whose command runs.
pub struct Alive {
    /// Its processes.
    pub running: Running,
    container: ContainerId,
    memory_limit: Option<u64>,
}

/// What recovery found.
pub enum Recovered {
    /// It runs.
    Running(Alive),
    /// It ended while nobody watched.
    Ended {
        /// How.
        exit: Exit,
        /// When it had started, if that is known.
        started_at: Option<SystemTime>,
    },
}

/// Starts a task's container. Gives up with [`TaskError::Cancelled`] when `cancelled` turns true before the container is made.
pub async fn run(
    engine: Arc<Engine>,
    tasks: Tasks,
    task: NomadTask,
    cancelled: watch::Receiver<bool>,
) -> Result<(Started, Alive), TaskError> {
    let began = std::time::Instant::now();
    let container = plan::container_id(&task.id);
    let events = engine.events.of_task(&task.id, &task.alloc_id, &task.name);
    // The kernel's slow first migration happens while the image is looked up.
    tokio::task::spawn_blocking(runtime::cgroup::warm_up);
    let spec = config::decode_task(&task.driver_config, engine.policy())?;
    let profile = seccomp_profile(&spec).await?;

    failpoint::at("start-before-lease");
    let lease = lease_image(&engine, &spec, &task, &container, (events.clone(), cancelled.clone())).await?;
    let pulled = began.elapsed();

    let node = node_facts(&engine).await?;
    let context = TaskContext {
        spec: &spec,
        task: &task,
        image: &lease.image,
        node: &node,
        policy: engine.policy(),
        profile: profile.as_ref(),
        attached: Attached::Soon,
    };
    let planned = plan::container_plan(&context)?;
    if let Some(reason) = &planned.slow {
        events.emit(format!("Copying the image, which makes the start slow: {reason}"), []);
    }
    for text in &planned.shortcomings {
        tracing::warn!(task = task.id, "{text}");
        events.emit(text.clone(), []);
    }
    // A CNI network may yet say how names are resolved.
    let ask_network = planned.own_network.as_ref().is_some_and(|own| own.wish.network != Choice::Bridge);
    if let Some(reason) = planned.no_names.as_ref().filter(|_| !ask_network) {
        events.emit(reason.clone(), []);
    }
    let mut state = DriverState::new(container, planned.stop_signal, spec.image.clone(), lease.image.digest.clone());
    let memory_limit = planned.container.resources.memory_limit;
    let prepared = began.elapsed();
    failpoint::at("start-before-folder");
    let mut network_ms = None;
    let running = match planned.own_network.clone() {
        None => start_container(&engine, tasks, planned, &task.alloc_id).await?,
        Some(own) => {
            let (network, took, running) = start_connected(&engine, tasks, &context, planned, own, &cancelled).await?;
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
    let alive = Alive { running, container: state.container.clone(), memory_limit };
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

async fn node_facts(engine: &Arc<Engine>) -> Result<NodeFacts, TaskError> {
    let engine = engine.clone();
    blocking(move || Ok(engine.node_facts())).await
}

async fn seccomp_profile(spec: &TaskSpec) -> Result<Option<SeccompProfile>, TaskError> {
    let Some(SeccompChoice::File(path)) = spec.security.seccomp.clone() else { return Ok(None) };
    blocking(move || super::profile::read(&path).map(Some)).await
}

/// Makes the task's own network, then the container in it. When that fails, the network goes.
async fn start_connected(
    engine: &Arc<Engine>,
    tasks: Tasks,
    context: &TaskContext<'_>,
    planned: TaskPlan,
    own: OwnNetwork,
    cancelled: &watch::Receiver<bool>,
) -> Result<(DriverNetwork, Duration, Running), TaskError> {
    let (container, alloc_id) = (planned.container.id.clone(), &context.task.alloc_id);
    let network = |attachment: &Attachment| DriverNetwork {
        address: own.address(attachment).map(|address| address.to_string()).unwrap_or_default(),
        ports: own.ports.clone(),
        auto_advertise: own.auto_advertise(),
    };
    let began = std::time::Instant::now();
    let attachment = connect(engine, tasks.clone(), planned, own.wish.clone(), alloc_id).await?;
    let took = began.elapsed();
    // Only now is it known what stands in /etc/hosts.
    let planned = plan::container_plan(&TaskContext { attached: Attached::To(&attachment), ..*context });
    let started = match planned {
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
    wish: Wish,
    alloc_id: &str,
) -> Result<Attachment, TaskError> {
    let (engine, prefix) = (engine.clone(), plan::alloc_prefix(alloc_id));
    blocking(move || {
        // What would fail later fails before anything is made; and a predecessor may hold the address.
        planned.check_confined().map_err(TaskError::Confinement)?;
        if let Some(prefix) = prefix {
            remove_predecessors(&engine, &tasks, &planned, &prefix)?;
        }
        Ok(engine.networks.attach(planned.container.id.as_str(), &wish)?)
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

/// Finds a task's container again by what its state folder says.
pub async fn recover(engine: &Arc<Engine>, state: &DriverState) -> Result<Recovered, TaskError> {
    let (worker, container) = (engine.clone(), state.container.clone());
    let status = blocking(move || worker.status(&container)).await?;
    match status {
        Status::Running(running) => {
            Ok(Recovered::Running(Alive { running, container: state.container.clone(), memory_limit: None }))
        }
        Status::Exited(record) => {
            Ok(Recovered::Ended { started_at: Some(record.started_at), exit: exit_of(&record, None) })
        }
        Status::Lost => Ok(Recovered::Ended { started_at: None, exit: lost() }),
        Status::Unknown => Err(TaskError::Unknown(state.container.to_string())),
    }
}

impl AsRef<Running> for Alive {
    fn as_ref(&self) -> &Running {
        &self.running
    }
}

impl Alive {
    /// Its name in the runtime.
    pub fn container(&self) -> &ContainerId {
        &self.container
    }

    /// Waits for the container's end and tells how it ended.
    pub async fn end(self: Arc<Self>, engine: Arc<Engine>) -> Exit {
        // The monitor ends last, after it wrote the exit record; when it was killed, the command itself is what is left to watch.
        for process in [&self.running.monitor, &self.running.init] {
            if let Err(error) = ended(process).await {
                tracing::error!(container = %self.container, pid = process.pid, %error, "cannot watch a process");
            }
            let (worker, container) = (engine.clone(), self.container.clone());
            match blocking(move || worker.status(&container)).await {
                Ok(Status::Exited(record)) => return exit_of(&record, self.memory_limit),
                Ok(Status::Running(_)) => {
                    tracing::warn!(container = %self.container, "monitor ended before its task; the exit status may be lost");
                }
                Ok(Status::Lost) => break,
                Ok(Status::Unknown) => return lost(),
                Err(error) => tracing::error!(container = %self.container, %error, "cannot read a task's state"),
            }
        }
        self.end_without_monitor(engine).await
    }

    /// The end of a container whose monitor was killed, as far as the kernel tells it to others than a parent.
    async fn end_without_monitor(self: Arc<Self>, engine: Arc<Engine>) -> Exit {
        let alive = self.clone();
        let told = blocking(move || {
            let told = engine.runtime.end_without_monitor(&alive.container, &alive.running);
            told.map_err(TaskError::internal)
        });
        match told.await {
            Ok(Some(record)) => exit_of(&record, self.memory_limit),
            Ok(None) => lost(),
            Err(error) => {
                tracing::error!(container = %self.container, %error, "cannot ask how a task ended");
                lost()
            }
        }
    }
}

async fn ended(process: &runtime::ProcessRef) -> std::io::Result<()> {
    let descriptor = sys::watch(process.pidfd.try_clone()?, Interest::READABLE)?;
    descriptor.readable().await.map(drop)
}

fn exit_of(record: &ExitRecord, memory_limit: Option<u64>) -> Exit {
    Exit {
        code: record.exit_code,
        signal: record.signal,
        oom_killed: record.oom_killed,
        finished_at: record.finished_at,
        message: message(record, memory_limit),
        remarks: super::hits::remarks(record),
    }
}

/// The end in words. Nomad takes any text for a failure: a task that ended well although the kernel killed a child of it keeps
/// its success.
fn message(record: &ExitRecord, memory_limit: Option<u64>) -> Option<String> {
    match (record.exit_code, record.signal) {
        (0, 0) => None,
        _ if record.oom_killed => {
            let memory = record.out_of_memory.clone().unwrap_or_default();
            let limit = memory.limit.or(memory_limit).map(|limit| limit >> 20);
            let limit = limit.map(|limit| format!(": the task reached its memory limit of {limit} MiB"));
            let victim = memory.victim.map(|victim| format!(" (killed: {}, process {})", victim.name, victim.pid));
            Some(format!("OOM Killed{}{}", limit.unwrap_or_default(), victim.unwrap_or_default()))
        }
        (code, 0) => Some(format!("Container exited with non-zero exit code: {code}")),
        (_, signal) => Some(format!("Container was killed by signal {signal}")),
    }
}

/// The end of a task whose monitor was killed before it could write down how it ended, and that nobody else saw.
fn lost() -> Exit {
    Exit {
        code: 255,
        signal: 0,
        oom_killed: false,
        finished_at: SystemTime::now(),
        message: Some(
            "the task ended, but its exit status was lost because its monitor process had been killed".to_owned(),
        ),
        remarks: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use runtime::ExitRecord;

    use super::message;

    #[test]
    fn only_failures_have_a_message() {
        let record = |exit_code, signal, oom_killed| ExitRecord {
            exit_code,
            signal,
            oom_killed,
            out_of_memory: None,
            forks_refused: 0,
            started_at: UNIX_EPOCH,
            finished_at: UNIX_EPOCH,
        };
        for (record, limit, expected) in [
            (record(0, 0, false), None, None),
            (record(0, 0, true), Some(64 << 20), None),
            (record(3, 0, false), None, Some("Container exited with non-zero exit code: 3")),
            (record(143, 15, false), None, Some("Container was killed by signal 15")),
            (record(137, 9, true), Some(64 << 20), Some("OOM Killed: the task reached its memory limit of 64 MiB")),
            (record(137, 9, true), None, Some("OOM Killed")),
        ] {
            assert_eq!(message(&record, limit).as_deref(), expected);
        }
    }
}
