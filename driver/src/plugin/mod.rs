//! The plugin role: Nomad's handshake, the socket, and the process around the server.
//!
//! Nomad starts the binary three times per agent start: once for its name, once to check its configuration, once to
//! stay. The plugin cannot tell the three apart. So this module touches nothing on the host but its socket and the
//! sockets that killed plugins left beside it.
//!
//! A plugin outlives its agent, because the next agent may connect to it. But an agent only remembers a plugin that has
//! accepted the agent's part of the configuration. Until then the plugin ends with its agent. A device plugin always
//! does.

mod handshake;
mod sweep;

use std::{os::fd::OwnedFd, path::Path, process::ExitCode};

use rustix::{
    io::Errno,
    process::{PidfdFlags, Signal, getppid, pidfd_open},
};
use tokio::io::Interest;

pub use self::{
    handshake::{COOKIE_NAME, launched_by_nomad},
    sweep::{is_deaf, refuses},
};
use crate::{
    hclog,
    name::{self, DriverName},
    rpc, sys,
};

/// The first descriptor above standard error.
const FIRST_INHERITED: u32 = 3;

/// Runs the plugin until the agent ends it.
pub fn main() -> ExitCode {
    // An agent leaks descriptors into its plugins, its listening sockets among them: a plugin that outlives the agent
    // would keep the port in use. And Ctrl-C in the agent's terminal reaches the whole process group: the agent
    // decides what it means.
    let prepared =
        host::sys::close_descriptors(FIRST_INHERITED, u32::MAX).and_then(|()| host::sys::ignore_signal(Signal::INT));
    let agent = getppid().map(|agent| pidfd_open(agent, PidfdFlags::empty()));
    let log = hclog::init();
    if let Err(error) = prepared {
        tracing::warn!(%error, "could not prepare the process");
    }
    let result = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())
        .and_then(|runtime| runtime.block_on(serve(log, agent)));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error, "plugin failed");
            ExitCode::FAILURE
        }
    }
}

/// The end of the agent, which is this process's parent; `None` if it is in another pid namespace.
async fn end_of(agent: Option<Result<OwnedFd, Errno>>) {
    let ended = match agent {
        Some(Ok(agent)) => match sys::watch(agent, Interest::READABLE) {
            Ok(agent) => agent.readable().await.map(drop),
            Err(error) => Err(error),
        },
        // It has ended already.
        Some(Err(Errno::SRCH)) => Ok(()),
        Some(Err(error)) => Err(error.into()),
        None => std::future::pending().await,
    };
    if let Err(error) = ended {
        tracing::warn!(%error, "the end of the agent cannot be seen");
        std::future::pending::<()>().await;
    }
}

/// Serves on one Unix socket. Returns soon after the agent called Shutdown, or after it ended without a valid
/// configuration.
async fn serve(log: hclog::Log, agent: Option<Result<OwnedFd, Errno>>) -> Result<(), String> {
    let (listener, socket) = handshake::listen().map_err(|error| format!("plugin socket: {error}"))?;
    let announce = || {
        handshake::announce(socket.path()).map_err(|error| format!("handshake: {error}"))?;
        // In the background: the agent is already free to call.
        let directory = socket.path().parent().map(Path::to_owned);
        tokio::task::spawn_blocking(move || directory.map(|directory| sweep::dead_sockets(&directory)));
        Ok(())
    };
    if name::is_device_plugin() {
        return rpc::serve_devices(listener, announce, end_of(agent)).await;
    }
    rpc::serve(listener, (DriverName::of_process(), socket.path()), log, announce, end_of(agent)).await
}
