//! The logs of a container: where they are, who watches them, and how much was dropped.

use std::{fs, path::Path};

use serde::de::IgnoredAny;

use super::runtime::Runtime;
use crate::{
    error::{Context, RuntimeError},
    logs::{DroppedBytes, LogWriters, OutputStream},
    plan::{ContainerId, Output},
    process::ProcessRef,
    state::{LOG_WATCHER, PLAN},
};

/// Where a container's output goes.
#[derive(Debug)]
pub struct ContainerLogs {
    /// Into these the command writes.
    pub output: Output,
    /// Into these the log relay writes, if there is one.
    pub relayed: Option<Output>,
    /// The command has a terminal.
    pub terminal: bool,
}

/// Output that a log relay did not deliver.
#[derive(Debug, PartialEq, Eq)]
pub struct Undelivered {
    /// The number of messages.
    pub messages: u64,
    /// The number of relays that were killed. The messages that they held in memory are lost, too.
    pub relays: u64,
    /// The destination, and why it did not get the last of these messages.
    pub reason: String,
}

impl Runtime {
    /// The container's logs; `None` if there is no such container.
    pub fn output(&self, id: &ContainerId) -> Result<Option<ContainerLogs>, RuntimeError> {
        #[derive(serde::Deserialize)]
        struct OutputPlan {
            output: Output,
            terminal: bool,
            #[serde(default)]
            delivery: Option<IgnoredAny>,
        }
        let task = self.task(id);
        let Some(OutputPlan { output, terminal, delivery }) = task.read(PLAN)? else { return Ok(None) };
        Ok(Some(match delivery {
            None => ContainerLogs { output, relayed: None, terminal },
            Some(_) => {
                let relayed = |stream| task.relayed(stream);
                let fifos = Output { stdout: relayed(OutputStream::Stdout), stderr: relayed(OutputStream::Stderr) };
                ContainerLogs { output: fifos, relayed: Some(output), terminal }
            }
        }))
    }

    /// What the container's log relay could not deliver so far, if it is something. It counts as reported from now on.
    pub fn take_undelivered(&self, id: &ContainerId) -> Result<Option<Undelivered>, RuntimeError> {
        let task = self.task(id);
        let take = |path: &Path| -> Result<u64, RuntimeError> {
            let reading = || format!("reading {}", path.display());
            match DroppedBytes::peek(path).context(reading)? {
                0 => Ok(0),
                _ => DroppedBytes::open(path).and_then(|count| count.take()).context(reading),
            }
        };
        let (messages, relays) = (take(&task.undelivered())?, take(&task.relay_ends())?);
        let reason = || fs::read_to_string(task.undelivered_reason()).unwrap_or_default();
        Ok((messages + relays > 0).then(|| Undelivered { messages, relays, reason: reason() }))
    }

    /// Tells the container's monitor that this process watches the log FIFOs from now on, for as long as it lives.
    pub fn announce_log_watcher(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let own = || ProcessRef::open(std::process::id() as i32)?.record();
        self.task(id).note(LOG_WATCHER, &own().context(|| "looking at our own process".to_owned())?)
    }

    /// Holds the log FIFOs of a container whose monitor was killed; `None` if there is no such container.
    /// [`Runtime::count_unread`] counts what no reader takes.
    pub fn hold_logs(&self, id: &ContainerId) -> Result<Option<LogWriters>, RuntimeError> {
        let Some(ContainerLogs { output, .. }) = self.output(id)? else { return Ok(None) };
        LogWriters::open(&output).map(Some).context(|| format!("opening the logs of {id}"))
    }

    /// Counts the output of an ended container that no reader took.
    pub fn count_unread(&self, id: &ContainerId, logs: LogWriters) -> Result<(), RuntimeError> {
        for (stream, bytes) in logs.close().context(|| format!("looking at the logs of {id}"))? {
            self.dropped_bytes(id, stream)?.add(bytes).context(|| format!("counting lost output of {id}"))?;
        }
        Ok(())
    }

    /// The count of dropped bytes of one of the container's streams; its file is created if it is missing.
    pub fn dropped_bytes(&self, id: &ContainerId, stream: OutputStream) -> Result<DroppedBytes, RuntimeError> {
        let path = self.task(id).dropped(stream);
        DroppedBytes::open(&path).context(|| format!("opening {}", path.display()))
    }

    /// The number that [`Runtime::dropped_bytes`] has counted. Creates no file.
    pub fn dropped_so_far(&self, id: &ContainerId, stream: OutputStream) -> Result<u64, RuntimeError> {
        let path = self.task(id).dropped(stream);
        DroppedBytes::peek(&path).context(|| format!("reading {}", path.display()))
    }
}
