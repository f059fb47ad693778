//! The plugin role: the handshake with Nomad, the socket, go-plugin's own services and the log.
//!
//! Nomad starts the binary three times per agent start: twice to ask who it is and to check its configuration, once to stay.
//! All three look alike from here, so nothing in this module touches the node beyond one socket, and those that killed plugins of
//! ours left beside it.

mod controller;
mod handshake;
pub mod hclog;
mod sweep;

use std::process::ExitCode;

use tokio::sync::watch;
use tonic::transport::Server;

pub use handshake::launched_by_nomad;

use crate::{rpc, sys};

/// What a call may have sent that nobody has read yet (RFC 9113, 6.9): input for a command that does not read.
const STREAM_WINDOW: u32 = 256 << 10;
/// The same for all calls of an agent together, which has one connection: so large that commands that do not read never keep it
/// from other calls. It is a limit; memory goes to what a stream's window lets in.
const CONNECTION_WINDOW: u32 = 1 << 30;
/// How long calls in flight get after the agent asked us to end. The agent itself waits two seconds before it kills.
const SHUTDOWN_GRACE: std::time::Duration = std::time::Duration::from_millis(300);

/// Runs the plugin until the agent ends it.
pub fn main() -> ExitCode {
    let prepared = sys::close_inherited_descriptors().and_then(|()| sys::ignore_interrupt());
    let log = hclog::init();
    if let Err(error) = prepared {
        tracing::warn!(%error, "could not prepare the process");
    }
    let result = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())
        .and_then(|runtime| runtime.block_on(serve(log)));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error, "plugin failed");
            ExitCode::FAILURE
        }
    }
}

/// Serves every service on one unix socket. Returns soon after the agent called Shutdown.
async fn serve(log: hclog::LogFile) -> Result<(), String> {
    let (listener, socket) = handshake::listen().map_err(|error| format!("plugin socket: {error}"))?;
    let (stop, stopped) = watch::channel(false);
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_service_status("plugin", tonic_health::ServingStatus::Serving).await;

    let plugin = rpc::Plugin::new(log);
    let server = Server::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .add_service(health_service)
        .add_service(controller::controller(stop))
        .add_service(controller::stdio())
        .add_service(controller::broker())
        .add_service(rpc::base_service(plugin.clone()))
        .add_service(rpc::driver_service(plugin));

    handshake::announce(socket.path()).map_err(|error| format!("handshake: {error}"))?;
    // Beside the work: an agent waits for the line above.
    let directory = socket.path().parent().map(std::path::Path::to_owned);
    tokio::task::spawn_blocking(move || directory.map(|directory| sweep::dead_sockets(&directory)));

    let incoming = tokio_stream::wrappers::UnixListenerStream::new(listener);
    let mut ended = stopped.clone();
    let serving = server.serve_with_incoming_shutdown(incoming, async move {
        wait_until_true(&mut ended).await;
    });
    // WaitTask and the other streams never end by themselves, and ending one with an error would look like a task's exit:
    // the answer to Shutdown gets a moment to leave, then the process goes with everything that is still open.
    let mut stopped = stopped;
    let deadline = async move {
        wait_until_true(&mut stopped).await;
        tokio::time::sleep(SHUTDOWN_GRACE).await;
    };
    tokio::select! {
        result = serving => result.map_err(|error| format!("plugin server: {error}")),
        () = deadline => Ok(()),
    }
}

async fn wait_until_true(flag: &mut watch::Receiver<bool>) {
    if flag.wait_for(|set| *set).await.is_err() {
        std::future::pending::<()>().await;
    }
}
