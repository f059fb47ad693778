//! ExecTask and ExecTaskStreaming: messages to commands and back.

use std::pin::Pin;

use proto::driver::{
    ExecTaskRequest, ExecTaskResponse, ExecTaskStreamingIoOperation, ExecTaskStreamingRequest,
    ExecTaskStreamingResponse, exec_task_streaming_request::Setup,
};
use runtime::{ExecExit, TerminalSize};
use tokio::sync::{mpsc, watch};
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};
use tonic::{Status, Streaming};

use super::{
    Plugin,
    driver::{container_of, duration, exec_result},
};
use crate::task::{
    TaskError,
    exec::{
        self, Client, Input, Output, Wanted,
        prefix::{self, Prefix},
    },
};

/// What goes back to a person's client.
pub type Outputs = Pin<Box<dyn Stream<Item = Result<ExecTaskStreamingResponse, Status>> + Send>>;

/// Chunks of output under way: enough to keep a pipe busy, little enough that a slow reader slows the command.
const UNDER_WAY: usize = 8;
/// The exit code of a command that was not run, as with docker; 126 and 127 are about its program.
const NOT_RUN: i32 = 125;
/// Messages with input under way: 64 KiB as the command line cuts them. What comes behind more than that, a new size too, waits.
const INPUT_UNDER_WAY: usize = 32;

/// Runs a command to its end.
pub async fn collect(plugin: &Plugin, request: ExecTaskRequest) -> Result<ExecTaskResponse, TaskError> {
    let container = container_of(plugin, &request.task_id)?;
    prefix::refuse(&request.command)?;
    let engine = plugin.engine().await?;
    let timeout = Some(duration(request.timeout)).filter(|timeout| !timeout.is_zero());
    let collected = exec::collect(engine, container, request.command, timeout).await?;
    Ok(ExecTaskResponse { stdout: collected.output, stderr: Vec::new(), result: Some(exec_result(&collected.exit)) })
}

/// Runs a command for a person. Its first message says which; the rest of the messages are its input.
pub async fn stream(plugin: &Plugin, mut requests: Streaming<ExecTaskStreamingRequest>) -> Result<Outputs, TaskError> {
    let first = requests.message().await.ok().flatten();
    let (conversation, setup, said) = Conversation::begin(first)?;
    let container = container_of(plugin, &setup.task_id)?;
    let engine = plugin.engine().await?;
    let (args, asked) = match prefix::split(setup.command, &engine.config.exec) {
        Ok(split) => split,
        Err(error) => return Ok(Box::pin(tokio_stream::iter(in_words(&error.into(), setup.tty).map(Ok)))),
    };
    if asked != Prefix::default() {
        tracing::info!(task = setup.task_id, prefix = ?asked, "command with a prefix");
    }
    let Prefix { options, image } = asked;

    let (input_sender, input) = mpsc::channel(INPUT_UNDER_WAY);
    let (size_sender, size) = watch::channel(None);
    let (output, output_receiver) = mpsc::channel(UNDER_WAY);
    let (replies, outputs) = mpsc::channel(UNDER_WAY);
    tokio::spawn(read_requests(requests, conversation, said, (input_sender, size_sender)));
    tokio::spawn(async move {
        let wanted = Wanted { args, options, image, terminal: setup.tty };
        let run = exec::stream(engine, container, wanted, Client { input, size, output });
        let (result, ()) = tokio::join!(run, send_replies(output_receiver, replies.clone()));
        if let Err(error) = result {
            for reply in in_words(&error, setup.tty) {
                // A client that went away misses nothing.
                drop(replies.send(Ok(reply)).await);
            }
        }
    });
    Ok(Box::pin(ReceiverStream::new(outputs)))
}

/// A command that could not be run, as a person sees it. Nomad's command line shows nothing of an error's text.
fn in_words(error: &TaskError, terminal: bool) -> [ExecTaskStreamingResponse; 2] {
    let words = if terminal {
        Output::Stdout(format!("oci-rs: {error}\r\n").into_bytes())
    } else {
        Output::Stderr(format!("oci-rs: {error}\n").into_bytes())
    };
    [words, Output::Exited(ExecExit { exit_code: NOT_RUN, signal: 0 })].map(reply)
}

/// What a client has said so far decides what its next message means: any order is fine, but for the first message.
#[derive(Debug)]
struct Conversation {
    stdin_closed: bool,
}

/// What one message says; a heartbeat says nothing.
#[derive(Debug, Default, PartialEq, Eq)]
struct Said {
    size: Option<TerminalSize>,
    input: Vec<Input>,
}

impl Conversation {
    /// Begins with the message that must come first. What it says beside the set-up counts as well.
    fn begin(first: Option<ExecTaskStreamingRequest>) -> Result<(Self, Setup, Said), TaskError> {
        let mut message = first.unwrap_or_default();
        let setup = message.setup.take();
        let setup = setup.ok_or_else(|| TaskError::Invalid("exec: the first message has no setup".to_owned()))?;
        let mut conversation = Self { stdin_closed: false };
        let said = conversation.hear(message);
        Ok((conversation, setup, said))
    }

    /// A second set-up changes nothing, and nothing comes after the end of the input.
    fn hear(&mut self, message: ExecTaskStreamingRequest) -> Said {
        let size = message.tty_size.map(|size| {
            let cells = |count: i32| u16::try_from(count.max(0)).unwrap_or(u16::MAX);
            TerminalSize { rows: cells(size.height), cols: cells(size.width) }
        });
        let mut input = Vec::new();
        if let Some(stdin) = message.stdin.filter(|_| !self.stdin_closed) {
            if !stdin.data.is_empty() {
                input.push(Input::Stdin(stdin.data));
            }
            if stdin.close {
                self.stdin_closed = true;
                input.push(Input::CloseStdin);
            }
        }
        Said { size, input }
    }
}

async fn read_requests(
    mut requests: Streaming<ExecTaskStreamingRequest>,
    mut conversation: Conversation,
    mut said: Said,
    (input, size): (mpsc::Sender<Input>, watch::Sender<Option<TerminalSize>>),
) {
    loop {
        if said.size.is_some() {
            size.send_replace(said.size);
        }
        for part in said.input {
            if input.send(part).await.is_err() {
                return;
            }
        }
        // The client never closes its side: what ends here is the connection, and the replies' end notices that too.
        let Some(Ok(message)) = requests.next().await else { return };
        said = conversation.hear(message);
    }
}

async fn send_replies(
    mut output: mpsc::Receiver<Output>,
    replies: mpsc::Sender<Result<ExecTaskStreamingResponse, Status>>,
) {
    loop {
        let message = tokio::select! {
            message = output.recv() => message,
            // Dropping our end tells the command's side that its client is gone.
            () = replies.closed() => return,
        };
        let Some(message) = message else { return };
        if replies.send(Ok(reply(message))).await.is_err() {
            return;
        }
    }
}

fn reply(output: Output) -> ExecTaskStreamingResponse {
    let operation = |data, close| Some(ExecTaskStreamingIoOperation { data, close });
    let empty = ExecTaskStreamingResponse::default();
    match output {
        Output::Stdout(data) => ExecTaskStreamingResponse { stdout: operation(data, false), ..empty },
        Output::Stderr(data) => ExecTaskStreamingResponse { stderr: operation(data, false), ..empty },
        Output::CloseStdout => ExecTaskStreamingResponse { stdout: operation(Vec::new(), true), ..empty },
        Output::CloseStderr => ExecTaskStreamingResponse { stderr: operation(Vec::new(), true), ..empty },
        Output::Exited(exit) => ExecTaskStreamingResponse { exited: true, result: Some(exec_result(&exit)), ..empty },
    }
}

#[cfg(test)]
mod tests {
    use proptest::{option, prelude::*};
    use proto::driver::exec_task_streaming_request::TerminalSize as WireSize;

    use super::*;

    fn message(stdin: Option<(Vec<u8>, bool)>, size: Option<(i32, i32)>, setup: bool) -> ExecTaskStreamingRequest {
        ExecTaskStreamingRequest {
            setup: setup.then(Setup::default),
            tty_size: size.map(|(height, width)| WireSize { height, width }),
            stdin: stdin.map(|(data, close)| ExecTaskStreamingIoOperation { data, close }),
        }
    }

    /// Heartbeats, input, its end, sizes and set-ups, each alone or with others.
    fn any_message() -> impl Strategy<Value = ExecTaskStreamingRequest> {
        let stdin = option::of((proptest::collection::vec(any::<u8>(), 0..4), proptest::bool::weighted(0.2)));
        (stdin, option::weighted(0.3, any::<(i32, i32)>()), proptest::bool::weighted(0.1))
            .prop_map(|(stdin, size, setup)| message(stdin, size, setup))
    }

    proptest! {
        #[test]
        fn any_order_of_messages_is_understood(messages in proptest::collection::vec(any_message(), 0..20)) {
            let begun = Conversation::begin(messages.first().cloned());
            if messages.first().is_none_or(|first| first.setup.is_none()) {
                // Also a size, input or a heartbeat that comes before the set-up.
                prop_assert!(matches!(begun, Err(TaskError::Invalid(_))));
                return Ok(());
            }
            let (mut conversation, _, first) = begun.unwrap();
            let said: Vec<Said> =
                std::iter::once(first).chain(messages[1..].iter().cloned().map(|next| conversation.hear(next))).collect();

            let close = messages.iter().position(|message| message.stdin.as_ref().is_some_and(|stdin| stdin.close));
            let until_close = &messages[..close.map_or(messages.len(), |at| at + 1)];
            let sent: Vec<u8> = until_close.iter().filter_map(|message| message.stdin.clone()).flat_map(|stdin| stdin.data).collect();
            let inputs: Vec<&Input> = said.iter().flat_map(|said| &said.input).collect();
            let bytes = |input: &&Input| match input { Input::Stdin(data) => data.clone(), Input::CloseStdin => Vec::new() };
            prop_assert_eq!(inputs.iter().flat_map(bytes).collect::<Vec<u8>>(), sent, "every byte once, in order");
            prop_assert!(!inputs.iter().any(|input| matches!(input, Input::Stdin(data) if data.is_empty())));
            let closes = inputs.iter().filter(|input| matches!(input, Input::CloseStdin)).count();
            prop_assert_eq!(closes, usize::from(close.is_some()));
            prop_assert!(close.is_none() || matches!(inputs.last(), Some(Input::CloseStdin)), "after all that was sent");
            let sizes = messages.iter().filter(|message| message.tty_size.is_some()).count();
            prop_assert_eq!(said.iter().filter(|said| said.size.is_some()).count(), sizes);
        }
    }

    #[test]
    fn sizes_are_what_a_terminal_can_have() {
        let size = |height, width| {
            let said = Conversation { stdin_closed: false }.hear(message(None, Some((height, width)), false));
            said.size.map(|size| (size.rows, size.cols))
        };
        assert_eq!(size(50, 132), Some((50, 132)));
        assert_eq!(size(-1, 70_000), Some((0, u16::MAX)));
    }

    #[test]
    fn the_result_travels_alone() {
        let reply = reply(Output::Exited(ExecExit { exit_code: 3, signal: 0 }));
        assert!(reply.exited && reply.stdout.is_none() && reply.stderr.is_none());
        assert_eq!(reply.result.unwrap().exit_code, 3);
    }
}
