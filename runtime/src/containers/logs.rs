//! The logs of a container: where they are, who watches them, and how much was dropped.

use std::{fs::File, io::ErrorKind, os::unix::fs::OpenOptionsExt};

use super::runtime::Runtime;
use crate::{
    error::{Context, RuntimeError},
    logs::{DroppedBytes, LogWriters, OutputStream},
    plan::{ContainerId, Output},
    process::ProcessRef,
    state::{HANG_UP, LOG_WATCHER, PLAN},
};

impl Runtime {
    /// The paths of the container's logs, and whether it has a terminal; `None` if there is no such container.
    pub fn output(&self, id: &ContainerId) -> Result<Option<(Output, bool)>, RuntimeError> {
        #[derive(serde::Deserialize)]
        struct OutputPlan {
            output: Output,
            terminal: bool,
        }
        Ok(self.task(id).read::<OutputPlan>(PLAN)?.map(|plan| (plan.output, plan.terminal)))
    }

    /// Tells the container's monitor that this process watches the log FIFOs from now on, for as long as it lives.
    pub fn announce_log_watcher(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let own = || ProcessRef::open(std::process::id() as i32)?.record();
        self.task(id).note(LOG_WATCHER, &own().context(|| "looking at our own process".to_owned())?)
    }

    /// Holds the log FIFOs of a container whose monitor was killed; `None` if there is no such container.
    /// [`Runtime::count_unread`] counts what no reader takes.
    pub fn hold_logs(&self, id: &ContainerId) -> Result<Option<LogWriters>, RuntimeError> {
        let Some((output, _)) = self.output(id)? else { return Ok(None) };
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

    /// Marks the hang-up of the container's terminal as reported; whether this call made the mark.
    pub fn mark_hang_up(&self, id: &ContainerId) -> Result<bool, RuntimeError> {
        let path = self.task(id).file(HANG_UP);
        match File::options().write(true).create_new(true).mode(0o600).open(&path) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error).context(|| format!("making {}", path.display())),
        }
    }

    /// The number that [`Runtime::dropped_bytes`] has counted. Creates no file.
    pub fn dropped_so_far(&self, id: &ContainerId, stream: OutputStream) -> Result<u64, RuntimeError> {
        let path = self.task(id).dropped(stream);
        DroppedBytes::peek(&path).context(|| format!("reading {}", path.display()))
    }
}
