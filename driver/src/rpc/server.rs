//! The gRPC server on the plugin's socket.

use std::{path::Path, time::Duration};

use proto::{
    base::base_plugin_server::BasePluginServer, device::device_plugin_server::DevicePluginServer,
    driver::driver_server::DriverServer,
};
use tokio::{net::UnixListener, sync::watch};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;

use super::{device::Devices, go_plugin, measure::MeasureLayer, state::Plugin};
use crate::{hclog::Log, name::DriverName};

/// Larger than any task configuration or handle. tonic's default of 4 MiB is not.
const LARGEST_MESSAGE: usize = 64 << 20;
/// The flow-control window of one stream (RFC 9113, 6.9): the input that waits for a command that does not read.
const STREAM_WINDOW: u32 = 256 << 10;
/// The flow-control window of an agent's only connection. It is so large that commands that do not read never block
/// other calls. It is a limit: memory is used only up to the streams' windows.
const CONNECTION_WINDOW: u32 = 1 << 30;
/// The time for calls in flight after the agent asked for the plugin's end. The agent waits two seconds before it
/// kills.
const SHUTDOWN_GRACE: Duration = Duration::from_millis(300);

/// Serves all services. Calls `announce` when they are ready. Returns soon after the agent called Shutdown, and at
/// `agent_end` unless an agent may connect again.
pub async fn serve(
    listener: UnixListener,
    (driver, socket): (DriverName, &Path),
    log: Log,
    announce: impl FnOnce() -> Result<(), String>,
    agent_end: impl Future<Output = ()>,
) -> Result<(), String> {
    let (stop, stopped) = watch::channel(false);
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_service_status("plugin", tonic_health::ServingStatus::Serving).await;

    let plugin = Plugin::new(driver, socket.to_owned(), log);
    let abandoned = {
        let plugin = plugin.clone();
        async move {
            agent_end.await;
            if plugin.is_in_use() {
                std::future::pending::<()>().await;
            }
        }
    };
    let server = Server::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .layer(MeasureLayer::new(plugin.clone()))
        .add_service(health_service)
        .add_service(go_plugin::controller(stop))
        .add_service(go_plugin::stdio())
        .add_service(go_plugin::broker())
        .add_service(BasePluginServer::new(plugin.clone()).max_decoding_message_size(LARGEST_MESSAGE))
        .add_service(DriverServer::new(plugin).max_decoding_message_size(LARGEST_MESSAGE));
    announce()?;
    let serving = server.serve_with_incoming_shutdown(UnixListenerStream::new(listener), is_true(stopped.clone()));
    until_end(serving, stopped, abandoned).await
}

/// Serves the device plugin. Returns soon after the agent called Shutdown, and at `agent_end`: the next agent starts a
/// plugin of its own.
pub async fn serve_devices(
    listener: UnixListener,
    announce: impl FnOnce() -> Result<(), String>,
    agent_end: impl Future<Output = ()>,
) -> Result<(), String> {
    let (stop, stopped) = watch::channel(false);
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_service_status("plugin", tonic_health::ServingStatus::Serving).await;
    let devices = Devices::default();
    let server = Server::builder()
        .add_service(health_service)
        .add_service(go_plugin::controller(stop))
        .add_service(go_plugin::stdio())
        .add_service(go_plugin::broker())
        .add_service(BasePluginServer::new(devices.clone()))
        .add_service(DevicePluginServer::new(devices));
    announce()?;
    let serving = server.serve_with_incoming_shutdown(UnixListenerStream::new(listener), is_true(stopped.clone()));
    until_end(serving, stopped, agent_end).await
}

/// Serves until the flag turns true, or until `abandoned` completes.
async fn until_end(
    serving: impl Future<Output = Result<(), tonic::transport::Error>>,
    stopped: watch::Receiver<bool>,
    abandoned: impl Future<Output = ()>,
) -> Result<(), String> {
    // WaitTask and the other streams never end by themselves, and an error on them would look like a task's exit. So
    // the answer to Shutdown gets a moment to leave, then the process ends with all open streams.
    let deadline = async move {
        is_true(stopped).await;
        tokio::time::sleep(SHUTDOWN_GRACE).await;
    };
    tokio::select! {
        result = serving => result.map_err(|error| format!("plugin server: {error}")),
        () = deadline => Ok(()),
        () = abandoned => Ok(()),
    }
}

/// Completes when the flag turns true.
async fn is_true(mut flag: watch::Receiver<bool>) {
    if flag.wait_for(|set| *set).await.is_err() {
        std::future::pending::<()>().await;
    }
}
