//! ExecTask and ExecTaskStreaming: from messages to commands and back.
//!
//! Nomad's client sends input and receives output side by side. If a send fails because the stream has ended, it may
//! drop replies that it has not read yet, the exit code among them. So a stream ends only after its client has closed
//! the input, or after a short wait.

use std::{pin::Pin, time::Duration};

use proto::driver::{ExecTaskRequest, ExecTaskResponse, ExecTaskStreamingRequest, ExecTaskStreamingResponse};
use runtime::{TerminalSize, plan::ContainerId};
use tokio::sync::{mpsc, watch};
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};
use tonic::{Status, Streaming};

use super::{
    conversation::{self, Conversation, ParsedMessage},
    convert,
    state::Plugin,
};
use crate::{
    error::{Refusal, TaskError},
    exec_prefix::{self, Prefix},
    node::Node,
    task::CommandSlot,
    task::exec::{self, ExecInput, ExecOutput, InteractiveClient, InteractiveCommand},
};

/// The answers to an interactive client.
pub type ReplyStream = Pin<Box<dyn Stream<Item = Result<ExecTaskStreamingResponse, Status>> + Send>>;

type ReplySender = mpsc::Sender<Result<ExecTaskStreamingResponse, Status>>;

/// Chunks of output in flight: enough to keep a pipe busy, few enough that a slow reader slows the command down.
const OUTPUT_IN_FLIGHT: usize = 8;
/// Input messages in flight: 64 KiB as Nomad's command line cuts them. Further messages wait, a new terminal size
/// too.
const INPUT_IN_FLIGHT: usize = 32;
/// The longest wait, after the last reply, for the client's end of input. Nomad's command line returns with the exit
/// code and does not see this wait. A client on a terminal never closes the input.
const LAST_INPUT_WAIT: Duration = Duration::from_millis(100);

/// Runs a command to its end.
pub async fn collect(plugin: &Plugin, request: ExecTaskRequest) -> Result<ExecTaskResponse, TaskError> {
    let node = plugin.node().await?;
    let (container, _slot) = running_container(plugin, &request.task_id, &node)?;
    exec_prefix::refuse(&request.command)?;
    let timeout = Some(convert::duration(request.timeout)).filter(|timeout| !timeout.is_zero());
    let collected = exec::collect(node, container, request.command, timeout).await?;
    let result = Some(convert::exec_result(&collected.exit));
    Ok(ExecTaskResponse { stdout: collected.output, stderr: Vec::new(), result })
}

/// Runs a command for an interactive client. The first message contains the command, the further messages its input.
pub async fn stream(
    plugin: &Plugin,
    mut requests: Streaming<ExecTaskStreamingRequest>,
) -> Result<ReplyStream, TaskError> {
    let first = requests.message().await.ok().flatten();
    let (conversation, setup, parsed) = Conversation::begin(first)?;
    let node = plugin.node().await?;
    let (container, slot) = running_container(plugin, &setup.task_id, &node)?;
    let split = exec_prefix::split(setup.command, &node.config.exec).map_err(TaskError::from);
    let (input_sender, input) = mpsc::channel(INPUT_IN_FLIGHT);
    let (size_sender, size) = watch::channel(None);
    let (closed_sender, mut input_closed) = watch::channel(false);
    let (output, output_receiver) = mpsc::channel(OUTPUT_IN_FLIGHT);
    let (replies, outputs) = mpsc::channel(OUTPUT_IN_FLIGHT);
    let senders = InputSenders { input: input_sender, size: size_sender, closed: closed_sender };
    tokio::spawn(read_requests(requests, conversation, parsed, senders));
    tokio::spawn(async move {
        let client = InteractiveClient { input, size, output };
        let run = async {
            let (args, prefix) = split?;
            if prefix != Prefix::default() {
                tracing::info!(task = setup.task_id, ?prefix, "command with a prefix");
            }
            let Prefix { options, image: debug_image } = prefix;
            let command = InteractiveCommand { args, options, debug_image, terminal: setup.tty };
            exec::stream(node, container, command, client).await
        };
        let (result, ()) = tokio::join!(run, send_replies(output_receiver, replies.clone()));
        drop(slot);
        if let Err(error) = result {
            for reply in conversation::error_replies(&error, setup.tty) {
                // A client that has gone away needs no reply.
                drop(replies.send(Ok(reply)).await);
            }
        }
        tokio::select! {
            // An error says that the connection has ended.
            _ = input_closed.wait_for(|closed| *closed) => {}
            () = replies.closed() => {}
            () = tokio::time::sleep(LAST_INPUT_WAIT) => {}
        }
    });
    Ok(Box::pin(ReceiverStream::new(outputs)))
}

/// The container of a task that runs, and a place among its commands.
fn running_container(plugin: &Plugin, task_id: &str, node: &Node) -> Result<(ContainerId, CommandSlot), TaskError> {
    let task = plugin.tasks().get(task_id)?;
    if task.view().exit.is_some() {
        return Err(TaskError::Refused(Refusal::NotRunning));
    }
    let container = task.state()?.container;
    let limit = node.config.exec.max_commands;
    let slot = task.info().command_slot(limit).ok_or(Refusal::TooManyCommands(limit))?;
    Ok((container, slot))
}

/// Where a client's messages go.
struct InputSenders {
    input: mpsc::Sender<ExecInput>,
    size: watch::Sender<Option<TerminalSize>>,
    /// Becomes true at the end of the input.
    closed: watch::Sender<bool>,
}

/// Reads the client's messages until the connection ends, or until the replies have ended. Input for a command that
/// has ended is dropped.
async fn read_requests(
    mut requests: Streaming<ExecTaskStreamingRequest>,
    mut conversation: Conversation,
    mut parsed: ParsedMessage,
    senders: InputSenders,
) {
    loop {
        if parsed.size.is_some() {
            senders.size.send_replace(parsed.size);
        }
        for part in parsed.input {
            let last = part == ExecInput::CloseStdin;
            // The receiver is gone after the command's end.
            drop(senders.input.send(part).await);
            if last {
                senders.closed.send_replace(true);
            }
        }
        let message = tokio::select! {
            message = requests.next() => message,
            () = senders.closed.closed() => return,
        };
        // The client never closes its side of the stream. An end here is the end of the connection, and the sender of
        // the replies notices it too.
        let Some(Ok(message)) = message else { return };
        parsed = conversation.parse(message);
    }
}

async fn send_replies(mut output: mpsc::Receiver<ExecOutput>, replies: ReplySender) {
    loop {
        let message = tokio::select! {
            message = output.recv() => message,
            // The dropped receiver of the output shows the command's side that its client has gone away.
            () = replies.closed() => return,
        };
        let Some(message) = message else { return };
        if replies.send(Ok(conversation::reply(message))).await.is_err() {
            return;
        }
    }
}
