//! A started process of the plugin, and the lines that it writes.

use std::{process::ExitStatus, time::Duration};

use fixtures::{
    must::Must,
    wait::{patient, within},
};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, BufReader},
    process::Child,
    sync::watch,
};

/// Lines that a process writes, collected while it runs.
#[derive(Debug, Clone)]
pub struct Lines {
    state: watch::Receiver<LinesState>,
}

#[derive(Debug, Default)]
struct LinesState {
    lines: Vec<String>,
    ended: bool,
}

impl Lines {
    /// Collects the lines of a stream in the background.
    pub(super) fn collect(stream: impl AsyncRead + Unpin + Send + 'static) -> Self {
        let (sender, state) = watch::channel(LinesState::default());
        tokio::spawn(async move {
            let mut reader = BufReader::new(stream);
            let mut line = Vec::new();
            while matches!(reader.read_until(b'\n', &mut line).await, Ok(count) if count > 0) {
                let text = String::from_utf8_lossy(&line).trim_end_matches('\n').to_owned();
                sender.send_modify(|state| state.lines.push(text));
                line.clear();
            }
            sender.send_modify(|state| state.ended = true);
        });
        Self { state }
    }

    /// No lines, for a stream without a reader.
    pub(super) fn none() -> Self {
        let (_, state) = watch::channel(LinesState { ended: true, ..Default::default() });
        Self { state }
    }

    /// The lines so far.
    pub fn so_far(&self) -> Vec<String> {
        self.state.borrow().lines.clone()
    }

    /// Waits for a line that meets the condition.
    pub async fn find(&self, limit: Duration, what: &str, condition: impl Fn(&str) -> bool) -> String {
        let mut state = self.state.clone();
        let reached = |state: &LinesState| state.ended || state.lines.iter().any(|line| condition(line));
        // The search below fails when the line did not arrive in time.
        drop(tokio::time::timeout(patient(limit), state.wait_for(reached)).await);
        let lines = self.so_far();
        lines.iter().find(|line| condition(line)).cloned().must(&format!("{what} among {lines:#?}"))
    }

    /// Waits until the stream is closed, and returns all lines.
    pub async fn all(&self, limit: Duration) -> Vec<String> {
        let mut state = self.state.clone();
        within(limit, "the end of the stream", state.wait_for(|state| state.ended)).await.must("the stream's reader");
        self.so_far()
    }
}

/// A started process of the binary.
#[derive(Debug)]
pub struct Process {
    child: Child,
    pid: Pid,
    /// Its standard output.
    pub stdout: Lines,
    /// Its standard error.
    pub stderr: Lines,
}

impl Process {
    pub(super) fn new(child: Child, stdout: Lines, stderr: Lines) -> Self {
        let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())).must("the child's process id");
        Self { child, pid, stdout, stderr }
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Waits until the process has ended. The test fails when it has not ended within the limit.
    pub async fn ended(&mut self, limit: Duration) -> ExitStatus {
        within(limit, "the end of the plugin process", self.child.wait()).await.must("wait for the plugin process")
    }

    /// Whether the process still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends a signal to the process.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).must("signal the plugin process");
    }

    /// Kills the process with SIGKILL and waits until it has ended.
    pub async fn kill(&mut self) {
        self.child.kill().await.must("kill the plugin process");
    }
}
