//! `nomad alloc exec`: a streaming session, driven as the agent does it.

use std::time::Duration;

use fixtures::{must::Must, wait::within};
use proto::driver::{
    ExecTaskStreamingIoOperation, ExecTaskStreamingRequest, ExecTaskStreamingResponse, ExitResult,
    exec_task_streaming_request::{Setup, TerminalSize},
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, UnboundedReceiverStream};
use tonic::{Status, Streaming};

use crate::plugin::Plugin;

/// The result of a finished session.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Outcome {
    /// Standard output, or the output of the terminal.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Exit code.
    pub code: i32,
    /// Signal.
    pub signal: i32,
}

/// The sender of a session's requests.
pub type Requests = mpsc::Sender<ExecTaskStreamingRequest>;

/// A request with input.
pub fn stdin(data: &[u8], close: bool) -> ExecTaskStreamingRequest {
    let stdin = Some(ExecTaskStreamingIoOperation { data: data.to_vec(), close });
    ExecTaskStreamingRequest { stdin, ..Default::default() }
}

/// A session. Dropping it cancels the call, like a client that disconnects.
#[derive(Debug)]
pub struct Session {
    // A client never closes its side of the stream.
    requests: mpsc::UnboundedSender<ExecTaskStreamingRequest>,
    answers: Streaming<ExecTaskStreamingResponse>,
    outcome: Outcome,
    result: Option<ExitResult>,
}

impl Plugin {
    /// Opens a session with its setup message. With a terminal, the next message is the size.
    pub async fn exec_streaming(&self, id: &str, command: &[&str], tty: Option<(i32, i32)>) -> Result<Session, Status> {
        let (requests, outgoing) = mpsc::unbounded_channel();
        let command = command.iter().map(|part| (*part).to_owned()).collect();
        let setup = Setup { task_id: id.to_owned(), command, tty: tty.is_some() };
        requests.send(ExecTaskStreamingRequest { setup: Some(setup), ..Default::default() }).must("the setup message");
        if let Some((height, width)) = tty {
            requests.send(size(height, width)).must("the terminal's size");
        }
        let answers = self.driver().exec_task_streaming(UnboundedReceiverStream::new(outgoing)).await?.into_inner();
        Ok(Session { requests, answers, outcome: Outcome::default(), result: None })
    }

    /// Opens a session. The test sends and receives the messages itself, under the flow control of the connection.
    pub async fn exec_raw(&self, id: &str, command: &[&str]) -> (Requests, Streaming<ExecTaskStreamingResponse>) {
        let (requests, outgoing) = mpsc::channel(16);
        let command = command.iter().map(|part| (*part).to_owned()).collect();
        let setup = Setup { task_id: id.to_owned(), command, tty: false };
        let setup = ExecTaskStreamingRequest { setup: Some(setup), ..Default::default() };
        requests.send(setup).await.must("the setup message");
        let answers = self.driver().exec_task_streaming(ReceiverStream::new(outgoing)).await.must("a session");
        (requests, answers.into_inner())
    }

    /// Runs a session without input to its end.
    pub async fn exec_to_end(
        &self,
        id: &str,
        command: &[&str],
        tty: Option<(i32, i32)>,
        limit: Duration,
    ) -> Result<Outcome, Status> {
        let session = self.exec_streaming(id, command, tty).await?;
        if tty.is_none() {
            session.close_stdin();
        }
        session.finish(limit).await
    }
}

/// A request with the terminal's size.
pub fn size(height: i32, width: i32) -> ExecTaskStreamingRequest {
    ExecTaskStreamingRequest { tty_size: Some(TerminalSize { height, width }), ..Default::default() }
}

impl Session {
    fn send(&self, request: ExecTaskStreamingRequest) {
        // This fails when the session has ended, as in Nomad's client.
        self.requests.send(request).ok();
    }

    /// Sends input.
    pub fn stdin(&self, data: &[u8]) {
        for chunk in data.chunks(2048) {
            self.send(stdin(chunk, false));
        }
    }

    /// Closes the command's standard input.
    pub fn close_stdin(&self) {
        self.send(stdin(&[], true));
    }

    /// Changes the terminal's size.
    pub fn resize(&self, height: i32, width: i32) {
        self.send(size(height, width));
    }

    /// Sends the empty message that a client sends every ten seconds.
    pub fn heartbeat(&self) {
        self.send(ExecTaskStreamingRequest::default());
    }

    /// Reads answers until the standard output so far contains the text.
    pub async fn until(&mut self, text: &str, limit: Duration) {
        let until = async {
            while !self.outcome.stdout.contains(text) {
                if !self.step().await.must("the session") {
                    panic!("the session ended before {text:?}: {:?}", self.outcome);
                }
            }
        };
        if tokio::time::timeout(limit, until).await.is_err() {
            panic!("no {text:?} within {limit:?}: {:?}", self.outcome);
        }
    }

    /// Reads to the end. Checks the order of messages that Go's client needs.
    pub async fn finish(mut self, limit: Duration) -> Result<Outcome, Status> {
        within(limit, "the end of the exec session", async {
            while self.step().await? {}
            Ok::<(), Status>(())
        })
        .await?;
        let result = self.result.must("a message with exited and result before the end of the stream");
        self.outcome.code = result.exit_code;
        self.outcome.signal = result.signal;
        Ok(self.outcome)
    }

    async fn step(&mut self) -> Result<bool, Status> {
        let Some(message) = self.answers.message().await? else {
            return Ok(false);
        };
        assert!(self.result.is_none(), "a message after the one that says exited: {message:?}");
        if message.exited {
            assert!(message.stdout.is_none() && message.stderr.is_none(), "exited travels alone: {message:?}");
            self.result = Some(message.result.must("a result beside exited"));
        }
        if let Some(stdout) = message.stdout {
            self.outcome.stdout.push_str(&String::from_utf8_lossy(&stdout.data));
        }
        if let Some(stderr) = message.stderr {
            self.outcome.stderr.push_str(&String::from_utf8_lossy(&stderr.data));
        }
        Ok(true)
    }
}
