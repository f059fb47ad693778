//! ExecTask and ExecTaskStreaming: messages to commands and back.

use std::pin::Pin;

use proto::driver::{
    ExecTaskRequest, ExecTaskResponse, ExecTaskStreamingIoOperation, ExecTaskStreamingRequest,
    ExecTaskStreamingResponse,
};
use runtime::TerminalSize;
use tokio::sync::mpsc;
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};
use tonic::{Status, Streaming};

use super::{
    Plugin,
    driver::{container_of, duration, exec_result},
    status,
};
use crate::task::{
    TaskError,
    exec::{self, Input, Output},
};

/// What goes back to a person's client.
pub type Outputs = Pin<Box<dyn Stream<Item = Result<ExecTaskStreamingResponse, Status>> + Send>>;

/// Chunks under way in each direction: enough to keep a pipe busy, little enough that a slow reader slows the command.
const UNDER_WAY: usize = 8;

/// Runs a command to its end.
pub async fn collect(plugin: &Plugin, request: ExecTaskRequest) -> Result<ExecTaskResponse, TaskError> {
    let container = container_of(plugin, &request.task_id)?;
    let engine = plugin.engine().await?;
    let timeout = Some(duration(request.timeout)).filter(|timeout| !timeout.is_zero());
    let collected = exec::collect(engine, container, request.command, timeout).await?;
    Ok(ExecTaskResponse { stdout: collected.output, stderr: Vec::new(), result: Some(exec_result(&collected.exit)) })
}

/// Runs a command for a person. Its first message says which; the rest of the messages are its input.
pub async fn stream(plugin: &Plugin, mut requests: Streaming<ExecTaskStreamingRequest>) -> Result<Outputs, TaskError> {
    let first = requests.message().await.ok().flatten();
    let setup = first.and_then(|message| message.setup);
    let setup = setup.ok_or_else(|| TaskError::Invalid("exec: the first message has no setup".to_owned()))?;
    let container = container_of(plugin, &setup.task_id)?;
    let engine = plugin.engine().await?;

    let (input_sender, input) = mpsc::channel(UNDER_WAY);
    let (output, output_receiver) = mpsc::channel(UNDER_WAY);
    let (replies, outputs) = mpsc::channel(UNDER_WAY);
    tokio::spawn(read_requests(requests, input_sender));
    tokio::spawn(async move {
        let run = exec::stream(engine, container, setup.command, setup.tty, input, output);
        let (result, ()) = tokio::join!(run, send_replies(output_receiver, replies.clone()));
        if let Err(error) = result {
            // A client that went away misses nothing.
            drop(replies.send(Err(status::of(&error))).await);
        }
    });
    Ok(Box::pin(ReceiverStream::new(outputs)))
}

async fn read_requests(mut requests: Streaming<ExecTaskStreamingRequest>, input: mpsc::Sender<Input>) {
    while let Some(Ok(message)) = requests.next().await {
        for message in inputs(message) {
            if input.send(message).await.is_err() {
                return;
            }
        }
    }
    // The client never closes its side: what ends here is the connection, and the replies' end notices that too.
}

/// What one message asks for; a heartbeat asks for nothing.
fn inputs(message: ExecTaskStreamingRequest) -> Vec<Input> {
    let size = message.tty_size.map(|size| {
        let cells = |count: i32| u16::try_from(count).unwrap_or(0);
        Input::Resize(TerminalSize { rows: cells(size.height), cols: cells(size.width) })
    });
    let stdin = message.stdin.into_iter().flat_map(|stdin| {
        let bytes = (!stdin.data.is_empty()).then_some(Input::Stdin(stdin.data));
        bytes.into_iter().chain(stdin.close.then_some(Input::CloseStdin))
    });
    size.into_iter().chain(stdin).collect()
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
    use proto::driver::{
        ExecTaskStreamingIoOperation, ExecTaskStreamingRequest, exec_task_streaming_request::TerminalSize,
    };

    use super::{Input, Output, inputs, reply};

    #[test]
    fn heartbeats_ask_for_nothing() {
        assert!(inputs(ExecTaskStreamingRequest::default()).is_empty());
    }

    #[test]
    fn the_last_bytes_come_before_the_close() {
        let stdin = Some(ExecTaskStreamingIoOperation { data: b"x".to_vec(), close: true });
        let size = Some(TerminalSize { height: 50, width: -1 });
        let inputs = inputs(ExecTaskStreamingRequest { stdin, tty_size: size, setup: None });
        assert!(matches!(&inputs[0], Input::Resize(size) if (size.rows, size.cols) == (50, 0)));
        assert!(matches!(&inputs[1], Input::Stdin(data) if data == b"x"));
        assert!(matches!(&inputs[2], Input::CloseStdin));
    }

    #[test]
    fn the_result_travels_alone() {
        let reply = reply(Output::Exited(runtime::ExecExit { exit_code: 3, signal: 0 }));
        assert!(reply.exited && reply.stdout.is_none() && reply.stderr.is_none());
        assert_eq!(reply.result.unwrap().exit_code, 3);
    }
}
