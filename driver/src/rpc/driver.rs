//! The task driver service.

use std::time::Duration;

use proto::driver::{
    CapabilitiesRequest, CapabilitiesResponse, CreateNetworkRequest, CreateNetworkResponse, DestroyNetworkRequest,
    DestroyNetworkResponse, DestroyTaskRequest, DestroyTaskResponse, DriverCapabilities, ExecTaskRequest,
    ExecTaskResponse, ExecTaskStreamingRequest, ExitResult, FingerprintRequest, InitRequest, InitResponse,
    InspectTaskRequest, InspectTaskResponse, RecoverTaskRequest, RecoverTaskResponse, ShutdownRequest,
    ShutdownResponse, SignalTaskRequest, SignalTaskResponse, StartTaskRequest, StartTaskResponse, StopTaskRequest,
    StopTaskResponse, TaskConfigSchemaRequest, TaskConfigSchemaResponse, TaskDriverStatus, TaskEventsRequest,
    TaskHandle, TaskState, TaskStatsRequest, WaitTaskRequest, WaitTaskResponse,
    driver_capabilities::{FsIsolation, MountConfigs},
    driver_server::Driver,
    network_isolation_spec::NetworkIsolationMode,
};
use tonic::{Request, Response, Status, Streaming};

use super::{Plugin, convert, detached, exec, schema, status, streams, task_config};
use crate::{
    signal,
    task::{DriverState, Event, TaskError},
};

/// The version of the handles that Nomad stores for us; the driver's part in them has a version of its own.
const HANDLE_VERSION: i32 = 1;

type Reply<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Driver for Plugin {
    type FingerprintStream = streams::Fingerprints;
    type TaskStatsStream = streams::Stats;
    type TaskEventsStream = streams::Events;
    type ExecTaskStreamingStream = exec::Outputs;

    async fn task_config_schema(&self, _: Request<TaskConfigSchemaRequest>) -> Reply<TaskConfigSchemaResponse> {
        Ok(Response::new(TaskConfigSchemaResponse { spec: Some(schema::task_schema()) }))
    }

    async fn capabilities(&self, _: Request<CapabilitiesRequest>) -> Reply<CapabilitiesResponse> {
        let capabilities = DriverCapabilities {
            send_signals: true,
            exec: true,
            fs_isolation: FsIsolation::Image.into(),
            network_isolation_modes: vec![NetworkIsolationMode::Host.into(), NetworkIsolationMode::Group.into()],
            must_create_network: false,
            mount_configs: MountConfigs::AnyMounts.into(),
            disable_log_collection: false,
            dynamic_workload_users: false,
        };
        Ok(Response::new(CapabilitiesResponse { capabilities: Some(capabilities) }))
    }

    async fn fingerprint(&self, _: Request<FingerprintRequest>) -> Reply<Self::FingerprintStream> {
        Ok(Response::new(streams::fingerprints(self.clone())))
    }

    async fn init(&self, _: Request<InitRequest>) -> Reply<InitResponse> {
        Ok(Response::new(InitResponse {}))
    }

    /// Tasks outlive the plugin, so there is nothing to shut down here; the process ends by the controller's Shutdown.
    async fn shutdown(&self, _: Request<ShutdownRequest>) -> Reply<ShutdownResponse> {
        Ok(Response::new(ShutdownResponse {}))
    }

    async fn start_task(&self, request: Request<StartTaskRequest>) -> Reply<StartTaskResponse> {
        let plugin = self.clone();
        detached(async move { start(&plugin, request.into_inner()).await }).await.map(Response::new)
    }

    async fn recover_task(&self, request: Request<RecoverTaskRequest>) -> Reply<RecoverTaskResponse> {
        let plugin = self.clone();
        detached(async move { recover(&plugin, request.into_inner()).await }).await.map(Response::new)
    }

    async fn wait_task(&self, request: Request<WaitTaskRequest>) -> Reply<WaitTaskResponse> {
        let task = self.0.tasks.get(&request.into_inner().task_id).map_err(|error| status::of(&error))?;
        let exit = task.wait().await.map_err(|error| status::of(&error))?;
        let result = Some(convert::exit_result(&exit));
        Ok(Response::new(WaitTaskResponse { result, err: exit.message.unwrap_or_default() }))
    }

    async fn stop_task(&self, request: Request<StopTaskRequest>) -> Reply<StopTaskResponse> {
        let plugin = self.clone();
        detached(async move { stop(&plugin, request.into_inner()).await }).await.map(Response::new)
    }

    async fn destroy_task(&self, request: Request<DestroyTaskRequest>) -> Reply<DestroyTaskResponse> {
        let plugin = self.clone();
        detached(async move { destroy(&plugin, request.into_inner()).await }).await.map(Response::new)
    }

    async fn inspect_task(&self, request: Request<InspectTaskRequest>) -> Reply<InspectTaskResponse> {
        let id = request.into_inner().task_id;
        let task = self.0.tasks.get(&id).map_err(|error| status::of(&error))?;
        let attributes = task.state().map(|state| driver_attributes(&state)).unwrap_or_default();
        Ok(Response::new(InspectTaskResponse {
            task: Some(convert::task_status(&id, task.name(), &task.view())),
            driver: Some(TaskDriverStatus { attributes }),
            network_override: task.state().ok().and_then(|state| state.network).map(convert::network),
        }))
    }

    async fn task_stats(&self, request: Request<TaskStatsRequest>) -> Reply<Self::TaskStatsStream> {
        let request = request.into_inner();
        let task = self.0.tasks.get(&request.task_id).map_err(|error| status::of(&error))?;
        let engine = self.engine().await.map_err(|error| status::of(&error))?;
        Ok(Response::new(streams::stats(engine, task, request)))
    }

    async fn task_events(&self, _: Request<TaskEventsRequest>) -> Reply<Self::TaskEventsStream> {
        Ok(Response::new(streams::events(&self.0.events)))
    }

    async fn signal_task(&self, request: Request<SignalTaskRequest>) -> Reply<SignalTaskResponse> {
        let plugin = self.clone();
        let work = async move {
            let request = request.into_inner();
            let signal = signal::parse(&request.signal)?;
            plugin.0.tasks.get(&request.task_id)?.apply(Event::Signal(signal)).await?;
            Ok(SignalTaskResponse {})
        };
        detached(work).await.map(Response::new)
    }

    async fn exec_task(&self, request: Request<ExecTaskRequest>) -> Reply<ExecTaskResponse> {
        let plugin = self.clone();
        detached(async move { exec::collect(&plugin, request.into_inner()).await }).await.map(Response::new)
    }

    async fn exec_task_streaming(
        &self,
        request: Request<Streaming<ExecTaskStreamingRequest>>,
    ) -> Reply<Self::ExecTaskStreamingStream> {
        let outputs = exec::stream(self, request.into_inner()).await.map_err(|error| status::of(&error))?;
        Ok(Response::new(outputs))
    }

    async fn create_network(&self, _: Request<CreateNetworkRequest>) -> Reply<CreateNetworkResponse> {
        Err(Status::unimplemented("oci-rs lets Nomad create a group's network"))
    }

    async fn destroy_network(&self, _: Request<DestroyNetworkRequest>) -> Reply<DestroyNetworkResponse> {
        Err(Status::unimplemented("oci-rs lets Nomad destroy a group's network"))
    }
}

async fn start(plugin: &Plugin, request: StartTaskRequest) -> Result<StartTaskResponse, TaskError> {
    let wire = request.task.ok_or_else(|| TaskError::Invalid("StartTask without a task".to_owned()))?;
    let engine = plugin.engine().await?;
    // The handle echoes the whole configuration: an agent that restarts knows its task by nothing else.
    let mut handle = TaskHandle {
        version: HANDLE_VERSION,
        config: Some(wire.clone()),
        state: TaskState::Running.into(),
        driver_state: Vec::new(),
    };
    let task = task_config::nomad_task(wire).map_err(|error| TaskError::Invalid(error.to_string()))?;
    let id = task.id.clone();
    let started = plugin.0.tasks.start(engine, task).await.inspect_err(|error| {
        tracing::error!(task = id, %error, recoverable = error.recoverable(), "task not started");
    })?;
    handle.driver_state = started.state.encode()?;
    let network_override = started.state.network.map(convert::network);
    Ok(StartTaskResponse { handle: Some(handle), network_override, ..StartTaskResponse::default() })
}

async fn recover(plugin: &Plugin, request: RecoverTaskRequest) -> Result<RecoverTaskResponse, TaskError> {
    let invalid = |text: &str| TaskError::Invalid(format!("RecoverTask {text}"));
    let handle = request.handle.ok_or_else(|| invalid("without a handle"))?;
    if !(0..=HANDLE_VERSION).contains(&handle.version) {
        return Err(invalid(&format!(
            "with a handle of version {}: this driver reads up to {HANDLE_VERSION}",
            handle.version
        )));
    }
    let config = handle.config.ok_or_else(|| invalid("without a task configuration"))?;
    let state = DriverState::decode(&handle.driver_state)?;
    let engine = plugin.engine().await?;
    let task = task_config::nomad_task(config).map_err(|error| TaskError::Invalid(error.to_string()))?;
    let recovered = plugin.0.tasks.recover(engine, &task, state).await;
    match &recovered {
        Ok(()) => tracing::info!(task = task.id, "task recovered"),
        Err(error) => tracing::error!(task = task.id, %error, "task not recovered"),
    }
    recovered.map(|()| RecoverTaskResponse {})
}

/// Returns when the task has ended. One that is unknown or has ended is stopped already: an error would be retried for minutes.
async fn stop(plugin: &Plugin, request: StopTaskRequest) -> Result<StopTaskResponse, TaskError> {
    let Ok(task) = plugin.0.tasks.get(&request.task_id) else { return Ok(StopTaskResponse {}) };
    let signal = match request.signal.as_str() {
        "" => task.state().map_or(libc::SIGTERM, |state| state.stop_signal),
        name => signal::parse(name)?,
    };
    match task.apply(Event::Stop { signal, grace: duration(request.timeout) }).await {
        // An unknown task here and below is one that was destroyed meanwhile, which is an end as well.
        Err(TaskError::Unknown(_)) => {}
        applied => {
            applied?;
            task.stopped().await?;
        }
    }
    Ok(StopTaskResponse {})
}

async fn destroy(plugin: &Plugin, request: DestroyTaskRequest) -> Result<DestroyTaskResponse, TaskError> {
    let engine = plugin.engine().await?;
    plugin.0.tasks.destroy(&engine, &request.task_id, request.force).await?;
    Ok(DestroyTaskResponse {})
}

fn driver_attributes(state: &DriverState) -> std::collections::HashMap<String, String> {
    [
        ("container_id", state.container.to_string()),
        ("image", state.image.clone()),
        ("image_digest", state.image_digest.clone()),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect()
}

/// A duration of the wire; nothing and nonsense (negative) are zero.
pub fn duration(duration: Option<prost_types::Duration>) -> Duration {
    duration.and_then(|duration| Duration::try_from(duration).ok()).unwrap_or_default()
}

/// A running task's container.
pub fn container_of(plugin: &Plugin, task_id: &str) -> Result<runtime::plan::ContainerId, TaskError> {
    let task = plugin.0.tasks.get(task_id)?;
    if task.view().exit.is_some() {
        return Err(TaskError::Refused(crate::task::Refusal::NotRunning));
    }
    task.state().map(|state| state.container)
}

/// An exit as the wire has it.
pub fn exec_result(exit: &runtime::ExecExit) -> ExitResult {
    ExitResult { exit_code: exit.exit_code, signal: exit.signal, oom_killed: false }
}
