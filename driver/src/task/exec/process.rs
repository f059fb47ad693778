//! Starts a command in a container and waits for its end.

use std::{io, os::fd::OwnedFd, sync::Arc, time::Duration};

use runtime::{ExecProcess, ExecRequest, plan::ContainerId};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::Semaphore,
};

use super::endpoint::pipe_failed;
use crate::{blocking::blocking, error::TaskError, node::Node, sys};

/// A helper may take this long to tell the end of a command that it was told to end. It gives up earlier.
pub const KILLED_WITHIN: Duration = Duration::from_secs(5);

/// Helpers are started one after the other. More threads would only wait for each other, and keep the work for other
/// tasks waiting.
static STARTS: Semaphore = Semaphore::const_new(2);

/// Starts a command. No thread waits meanwhile: the container decides how long it takes. If this is dropped, the
/// command is ended.
pub async fn spawn(node: Arc<Node>, container: ContainerId, request: ExecRequest) -> Result<ExecProcess, TaskError> {
    if request.args.is_empty() {
        return Err(TaskError::Invalid("exec: the command is empty".to_owned()));
    }
    let permit = STARTS.acquire().await;
    let process = blocking(move || Ok(node.runtime.begin_exec(&container, request)?)).await?;
    drop(permit);
    ended(&process).await?;
    Ok(process.begun()?)
}

/// Waits for the next message of a command's helper: the end of the command's first process, after its begin.
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
