//! StartTask, RecoverTask, StopTask, DestroyTask: from the wire to the tasks and back.

use std::sync::Arc;

use proto::driver::{
    DestroyTaskRequest, DestroyTaskResponse, RecoverTaskRequest, RecoverTaskResponse, StartTaskRequest,
    StartTaskResponse, StopTaskRequest, StopTaskResponse, TaskConfig, TaskHandle, TaskState,
};

use super::{convert, state::Plugin, task_config};
use crate::{
    dockerd,
    error::TaskError,
    incomplete_layers,
    node::Node,
    signal,
    task::{DriverState, Event},
};

/// The version of the handles that Nomad stores. The driver's part in them has a version of its own.
const HANDLE_VERSION: i32 = 1;

/// StartTask: starts a task and waits until its command runs.
pub async fn start(plugin: &Plugin, request: StartTaskRequest) -> Result<StartTaskResponse, TaskError> {
    let wire = request.task.ok_or_else(|| TaskError::Invalid("StartTask without a task".to_owned()))?;
    let node = plugin.node().await?;
    // The handle repeats the whole configuration: a restarted agent has no other record of the task.
    let mut handle = TaskHandle {
        version: HANDLE_VERSION,
        config: Some(wire.clone()),
        state: TaskState::Running.into(),
        driver_state: Vec::new(),
    };
    let task = task_config::nomad_task(wire).map_err(|error| TaskError::Invalid(error.to_string()))?;
    let id = task.id.clone();
    plugin.events().attend(&id);
    let started = plugin.tasks().start(node, task).await.inspect_err(|error| not_started(&id, error))?;
    handle.driver_state = started.encode()?;
    let network_override = started.network.map(convert::network);
    Ok(StartTaskResponse { handle: Some(handle), network_override, ..StartTaskResponse::default() })
}

/// Writes the failure of a start to the log: as an error if the node has failed, as a warning if the job must change or
/// an image is not there, and as information if the task was stopped.
fn not_started(task: &str, error: &TaskError) {
    let recoverable = error.recoverable();
    match error {
        TaskError::Cancelled => tracing::info!(task, "task not started: it was stopped before its command ran"),
        error if error.is_of_node() => tracing::error!(task, %error, recoverable, "task not started"),
        error => tracing::warn!(task, %error, recoverable, "task not started"),
    }
}

/// RecoverTask: takes over a task that another plugin process started.
pub async fn recover(plugin: &Plugin, request: RecoverTaskRequest) -> Result<RecoverTaskResponse, TaskError> {
    let invalid = |text: &str| TaskError::Invalid(format!("RecoverTask {text}"));
    let handle = request.handle.ok_or_else(|| invalid("without a handle"))?;
    if !(0..=HANDLE_VERSION).contains(&handle.version) {
        return Err(invalid(&format!(
            "with a handle of version {}: this driver reads up to {HANDLE_VERSION}",
            handle.version
        )));
    }
    let config = handle.config.ok_or_else(|| invalid("without a task configuration"))?;
    let node = plugin.node().await?;
    if let Some(foreign) = dockerd::Handle::parse(&handle.driver_state) {
        return Err(replace(&node, &config, foreign));
    }
    let state = DriverState::decode(&handle.driver_state)?;
    let task = task_config::nomad_task(config).map_err(|error| TaskError::Invalid(error.to_string()))?;
    let recovered = plugin.tasks().recover(node.clone(), &task, state).await;
    match &recovered {
        Ok(()) => {
            incomplete_layers::pass_credentials(&node, &task);
            tracing::info!(task = task.id, "task recovered");
        }
        // A restarted agent also asks for tasks that it has destroyed, until their allocations are removed.
        Err(TaskError::Unknown(_)) => tracing::debug!(task = task.id, "task not recovered: it has no container"),
        Err(error) => tracing::error!(task = task.id, %error, "task not recovered"),
    }
    recovered.map(|()| RecoverTaskResponse {})
}

/// Removes the container of Nomad's docker driver, so that Nomad can start the task again. Returns at once, because an
/// agent recovers its tasks one after another: the task's start waits for the removal.
fn replace(node: &Arc<Node>, config: &TaskConfig, handle: dockerd::Handle) -> TaskError {
    let container = handle.short().to_owned();
    let Some(dockerd) = &node.dockerd else {
        return TaskError::Invalid(format!(
            "Nomad's docker driver started this task, and its container {container} may still run: remove it with \
             `docker rm --force {container}`. Drain a node before its driver changes"
        ));
    };
    let (alloc, task) = (config.alloc_id.clone(), config.name.clone());
    dockerd.note(&alloc, &task, handle);
    let worker = node.clone();
    tokio::spawn(async move {
        let Some(dockerd) = &worker.dockerd else { return };
        if let Err(error) = dockerd.remove_predecessor(&alloc, &task).await {
            tracing::error!(alloc, task, %error, "a container of Nomad's docker driver was not removed");
        }
    });
    TaskError::Invalid(format!(
        "Nomad's docker driver started this task: if its container {container} still exists, it is stopped and \
         removed. If the task has not ended, Nomad starts it again"
    ))
}

/// StopTask: returns when the task has ended. An unknown task counts as stopped, because Nomad repeats a failed stop
/// for minutes.
pub async fn stop(plugin: &Plugin, request: StopTaskRequest) -> Result<StopTaskResponse, TaskError> {
    let Ok(task) = plugin.tasks().get(&request.task_id) else { return Ok(StopTaskResponse {}) };
    plugin.events().attend(&request.task_id);
    let signal = match request.signal.as_str() {
        "" => task.state().map_or(libc::SIGTERM, |state| state.stop_signal),
        name => signal::parse(name)?,
    };
    match task.apply(Event::Stop { signal, grace: convert::duration(request.timeout) }).await {
        // The task was destroyed meanwhile, which is an end as well.
        Err(TaskError::Unknown(_)) => {}
        applied => {
            applied?;
            task.stopped().await?;
        }
    }
    Ok(StopTaskResponse {})
}

/// DestroyTask: removes everything of a task.
pub async fn destroy(plugin: &Plugin, request: DestroyTaskRequest) -> Result<DestroyTaskResponse, TaskError> {
    let node = plugin.node().await?;
    if plugin.tasks().get(&request.task_id).is_ok() {
        plugin.events().attend(&request.task_id);
    }
    plugin.tasks().destroy(&node, &request.task_id, request.force).await?;
    Ok(DestroyTaskResponse {})
}
