//! Starts a command in a container and waits for its end.

use std::{io, os::fd::OwnedFd, sync::Arc};

use runtime::{ExecProcess, ExecRequest, plan::ContainerId};
use tokio::io::{Interest, unix::AsyncFd};

use super::endpoint::pipe_failed;
use crate::{blocking::blocking, error::TaskError, node::Node, sys};

/// Starts a command.
pub async fn spawn(node: Arc<Node>, container: ContainerId, request: ExecRequest) -> Result<ExecProcess, TaskError> {
    if request.args.is_empty() {
        return Err(TaskError::Invalid("exec: the command is empty".to_owned()));
    }
    blocking(move || Ok(node.runtime.exec(&container, request)?)).await
}

/// Waits for the end of a command's first process.
pub async fn ended(process: &ExecProcess) -> Result<(), TaskError> {
    let watch =
        || -> io::Result<AsyncFd<OwnedFd>> { sys::watch(process.exit_fd().try_clone_to_owned()?, Interest::READABLE) };
    let watched = watch().map_err(pipe_failed)?;
    watched.readable().await.map(drop).map_err(pipe_failed)
}

/// Opens /dev/null for reading and writing.
pub fn null() -> Result<OwnedFd, TaskError> {
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null");
    null.map(OwnedFd::from).map_err(|error| TaskError::Internal(format!("/dev/null: {error}")))
}
