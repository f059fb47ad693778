//! The task driver service. Each call only translates, and hands over to the module that does the work.

use proto::driver::{
    CapabilitiesRequest, CapabilitiesResponse, CreateNetworkRequest, CreateNetworkResponse, DestroyNetworkRequest,
    DestroyNetworkResponse, DestroyTaskRequest, DestroyTaskResponse, DriverCapabilities, ExecTaskRequest,
    ExecTaskResponse, ExecTaskStreamingRequest, FingerprintRequest, InitRequest, InitResponse, InspectTaskRequest,
    InspectTaskResponse, RecoverTaskRequest, RecoverTaskResponse, ShutdownRequest, ShutdownResponse, SignalTaskRequest,
    SignalTaskResponse, StartTaskRequest, StartTaskResponse, StopTaskRequest, StopTaskResponse,
    TaskConfigSchemaRequest, TaskConfigSchemaResponse, TaskDriverStatus, TaskEventsRequest, TaskStatsRequest,
    WaitTaskRequest, WaitTaskResponse,
    driver_capabilities::{FsIsolation, MountConfigs},
    driver_server::Driver,
    network_isolation_spec::NetworkIsolationMode,
};
use tonic::{Request, Response, Status, Streaming};

use super::{
    convert, exec, fingerprints, group_networks, schema,
    state::{Plugin, detached},
    stats, task_events, tasks,
};
use crate::{config::PluginConfig, signal, task::Event};

type RpcResult<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Driver for Plugin {
    type FingerprintStream = fingerprints::FingerprintStream;
    type TaskStatsStream = stats::StatsStream;
    type TaskEventsStream = task_events::TaskEventStream;
    type ExecTaskStreamingStream = exec::ReplyStream;

    async fn task_config_schema(&self, _: Request<TaskConfigSchemaRequest>) -> RpcResult<TaskConfigSchemaResponse> {
        Ok(Response::new(TaskConfigSchemaResponse { spec: Some(schema::task_schema()) }))
    }

    async fn capabilities(&self, _: Request<CapabilitiesRequest>) -> RpcResult<CapabilitiesResponse> {
        // An agent asks a plugin that it has configured.
        let config = self.configured().map(|configured| configured.config);
        let config = config.unwrap_or_else(|_| PluginConfig::default());
        let capabilities = DriverCapabilities {
            send_signals: true,
            exec: true,
            fs_isolation: FsIsolation::Image.into(),
            network_isolation_modes: vec![NetworkIsolationMode::Host.into(), NetworkIsolationMode::Group.into()],
            must_create_network: config.group_networks,
            mount_configs: MountConfigs::AnyMounts.into(),
            disable_log_collection: !config.policy.collect_output,
            dynamic_workload_users: false,
        };
        Ok(Response::new(CapabilitiesResponse { capabilities: Some(capabilities) }))
    }

    async fn fingerprint(&self, _: Request<FingerprintRequest>) -> RpcResult<Self::FingerprintStream> {
        Ok(Response::new(fingerprints::stream(self.clone())))
    }

    async fn init(&self, _: Request<InitRequest>) -> RpcResult<InitResponse> {
        Ok(Response::new(InitResponse {}))
    }

    /// Tasks outlive the plugin, so there is nothing to shut down here; the process ends by the controller's
    /// Shutdown.
    async fn shutdown(&self, _: Request<ShutdownRequest>) -> RpcResult<ShutdownResponse> {
        Ok(Response::new(ShutdownResponse {}))
    }

    async fn start_task(&self, request: Request<StartTaskRequest>) -> RpcResult<StartTaskResponse> {
        let plugin = self.clone();
        detached(async move { tasks::start(&plugin, request.into_inner()).await }).await.map(Response::new)
    }

    async fn recover_task(&self, request: Request<RecoverTaskRequest>) -> RpcResult<RecoverTaskResponse> {
        let plugin = self.clone();
        detached(async move { tasks::recover(&plugin, request.into_inner()).await }).await.map(Response::new)
    }

    async fn wait_task(&self, request: Request<WaitTaskRequest>) -> RpcResult<WaitTaskResponse> {
        let id = request.into_inner().task_id;
        let task = self.tasks().get(&id)?;
        self.events().attend(&id);
        if let Some(container) = task.first_attention() {
            self.node().await?.answered(container).await;
        }
        let exit = task.wait().await?;
        let result = Some(convert::exit_result(&exit));
        Ok(Response::new(WaitTaskResponse { result, err: exit.message.unwrap_or_default() }))
    }

    async fn stop_task(&self, request: Request<StopTaskRequest>) -> RpcResult<StopTaskResponse> {
        let plugin = self.clone();
        detached(async move { tasks::stop(&plugin, request.into_inner()).await }).await.map(Response::new)
    }

    async fn destroy_task(&self, request: Request<DestroyTaskRequest>) -> RpcResult<DestroyTaskResponse> {
        let plugin = self.clone();
        detached(async move { tasks::destroy(&plugin, request.into_inner()).await }).await.map(Response::new)
    }

    async fn inspect_task(&self, request: Request<InspectTaskRequest>) -> RpcResult<InspectTaskResponse> {
        let id = request.into_inner().task_id;
        let task = self.tasks().get(&id)?;
        let attributes = task.state().map(|state| convert::driver_attributes(&state)).unwrap_or_default();
        Ok(Response::new(InspectTaskResponse {
            task: Some(convert::task_status(&id, task.name(), &task.view())),
            driver: Some(TaskDriverStatus { attributes }),
            network_override: task.state().ok().and_then(|state| state.network).map(convert::network),
        }))
    }

    async fn task_stats(&self, request: Request<TaskStatsRequest>) -> RpcResult<Self::TaskStatsStream> {
        let request = request.into_inner();
        let task = self.tasks().get(&request.task_id)?;
        let node = self.node().await?;
        Ok(Response::new(stats::stream(node, task, request)))
    }

    async fn task_events(&self, _: Request<TaskEventsRequest>) -> RpcResult<Self::TaskEventsStream> {
        Ok(Response::new(task_events::stream(self.events())))
    }

    async fn signal_task(&self, request: Request<SignalTaskRequest>) -> RpcResult<SignalTaskResponse> {
        let plugin = self.clone();
        let work = async move {
            let request = request.into_inner();
            let signal = signal::parse(&request.signal)?;
            plugin.tasks().get(&request.task_id)?.apply(Event::Signal(signal)).await?;
            Ok(SignalTaskResponse {})
        };
        detached(work).await.map(Response::new)
    }

    async fn exec_task(&self, request: Request<ExecTaskRequest>) -> RpcResult<ExecTaskResponse> {
        let plugin = self.clone();
        detached(async move { exec::collect(&plugin, request.into_inner()).await }).await.map(Response::new)
    }

    async fn exec_task_streaming(
        &self,
        request: Request<Streaming<ExecTaskStreamingRequest>>,
    ) -> RpcResult<Self::ExecTaskStreamingStream> {
        let outputs = exec::stream(self, request.into_inner()).await?;
        Ok(Response::new(outputs))
    }

    async fn create_network(&self, request: Request<CreateNetworkRequest>) -> RpcResult<CreateNetworkResponse> {
        let plugin = self.clone();
        detached(async move { group_networks::create(&plugin, request.into_inner()).await }).await.map(Response::new)
    }

    async fn destroy_network(&self, request: Request<DestroyNetworkRequest>) -> RpcResult<DestroyNetworkResponse> {
        let plugin = self.clone();
        detached(async move { group_networks::destroy(&plugin, request.into_inner()).await }).await.map(Response::new)
    }
}
