//! Runs a command to its end and keeps the last output, for script checks.

use std::{io, sync::Arc, time::Duration};

use runtime::{ExecExit, ExecOptions, ExecProcess, ExecRequest, plan::ContainerId};
use tokio::time::Instant;

use super::{
    endpoint::{Endpoint, OutputTail, pipe_failed},
    process::{KILLED_WITHIN, ended, null, spawn},
};
use crate::{blocking::blocking, error::TaskError, node::Node};

/// A command's end and the end of its output.
#[derive(Debug)]
pub struct Collected {
    /// The last bytes of standard output and standard error, in the order in which they were written.
    pub output: Vec<u8>,
    /// The command's end.
    pub exit: ExecExit,
}

/// Runs a command to its end. The timeout begins now; a command that exceeds it is killed with all its descendants
/// and reported as killed.
pub async fn collect(
    node: Arc<Node>,
    container: ContainerId,
    args: Vec<String>,
    timeout: Option<Duration>,
) -> Result<Collected, TaskError> {
    // A timeout longer than the clock can count never ends.
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let (reader, writer) = io::pipe().map_err(pipe_failed)?;
    let request = ExecRequest {
        args,
        terminal: None,
        stdin: null()?,
        stdout: writer.try_clone().map_err(pipe_failed)?.into(),
        stderr: writer.into(),
        options: ExecOptions { whole_tree: deadline.is_some(), ..ExecOptions::default() },
    };
    let process = tokio::select! {
        spawned = spawn(node, container, request) => spawned?,
        () = reached(deadline) => {
            let mut tail = OutputTail::default();
            tail.push(killed_after(timeout).as_bytes());
            return Ok(Collected { output: tail.0, exit: KILLED });
        }
    };
    let endpoint = Endpoint::new(reader)?;
    let mut tail = OutputTail::default();
    let in_time = read_until_end(&endpoint, &mut tail, &process, deadline).await?;
    if !in_time {
        process.kill();
        // The end of a frozen task's command is reported without the command's end.
        tokio::time::timeout(KILLED_WITHIN, ended(&process)).await.unwrap_or(Ok(()))?;
    }
    let mut unread = endpoint.unread();
    while let Some(bytes) = endpoint.read_available(&mut unread) {
        tail.push(&bytes);
    }
    let exit = if in_time { blocking(move || Ok(process.wait())).await? } else { KILLED };
    if !in_time {
        tail.push(killed_after(timeout).as_bytes());
    }
    Ok(Collected { output: tail.0, exit })
}

fn killed_after(timeout: Option<Duration>) -> String {
    let timeout = timeout.unwrap_or_default().as_secs_f64();
    format!("\ncommand killed: it ran longer than its timeout of {timeout} s\n")
}

/// The end of a command that was killed before it began.
const KILLED: ExecExit = ExecExit { exit_code: 128 + libc::SIGKILL, signal: libc::SIGKILL };

async fn reached(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Reads the output until the command has ended or the deadline has passed. Returns whether the command ended in
/// time.
async fn read_until_end(
    endpoint: &Endpoint,
    tail: &mut OutputTail,
    process: &ExecProcess,
    deadline: Option<Instant>,
) -> Result<bool, TaskError> {
    let expired = reached(deadline);
    let end = ended(process);
    tokio::pin!(expired, end);
    let mut open = true;
    loop {
        tokio::select! {
            result = &mut end => return result.map(|()| true),
            () = &mut expired => return Ok(false),
            chunk = endpoint.read(), if open => {
                open = !chunk.is_empty();
                tail.push(&chunk);
            }
        }
    }
}
