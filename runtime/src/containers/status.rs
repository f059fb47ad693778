//! The status of a container.

use std::{io, time::SystemTime};

use super::runtime::Runtime;
use crate::{
    cgroup::Cgroups,
    error::{Context, RuntimeError},
    installed::InstalledContainer,
    plan::ContainerId,
    process::{ProcessRecord, ProcessRef},
    state::{CGROUP, CONTAINER, ContainerRecord, EXIT, ExitRecord, MONITOR, PLAN, TaskDir},
    terminal_hold::TerminalHold,
};

/// The status of a container.
#[derive(Debug)]
pub enum Status {
    /// No such container.
    Unknown,
    /// It runs.
    Running(Running),
    /// It has ended.
    Exited(ExitRecord),
    /// It has ended, or was never started, and there is no record of its end.
    Lost,
}

/// A running container.
#[derive(Debug)]
pub struct Running {
    /// The monitor. If the monitor was killed, this is the container's first process too.
    pub monitor: ProcessRef,
    /// The container's first process.
    pub init: ProcessRef,
    /// When the command was started.
    pub started_at: SystemTime,
    /// A runtime of the node made the container. It also sends the signals.
    pub installed: bool,
}

impl Running {
    /// Sends a signal to the container's first process. It is no error if that has ended. Not for a container of an
    /// installed runtime: see [`Runtime::signal_installed`].
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        self.init.signal(signal)
    }

    /// Holds the container's terminal, if its monitor has one. If the monitor is killed, the terminal is then not hung
    /// up.
    pub fn hold_terminal(&self) -> io::Result<Option<TerminalHold>> {
        // Without a monitor the terminal has no holder.
        if self.monitor.pid == self.init.pid { Ok(None) } else { TerminalHold::of(&self.monitor) }
    }
}

/// The part of a plan that tells the stop signal.
#[derive(serde::Deserialize)]
struct StoppablePlan {
    #[serde(default)]
    stop_signal: Option<i32>,
}

/// The process of a record, if it still runs.
pub(super) fn process(task: &TaskDir, name: &str) -> Result<Option<ProcessRef>, RuntimeError> {
    let Some(record) = task.read::<ProcessRecord>(name)? else { return Ok(None) };
    ProcessRef::find(&record).context(|| format!("looking for process {}", record.pid))
}

/// The status of the container with this directory. Takes no lock.
pub(super) fn status(task: &TaskDir, id: &ContainerId) -> Result<Status, RuntimeError> {
    // The monitor is looked up first: it writes the exit record before it ends.
    let monitor = process(task, MONITOR)?;
    if let Some(exit) = task.read::<ExitRecord>(EXIT)? {
        return Ok(Status::Exited(exit));
    }
    if !task.path().exists() {
        return Ok(Status::Unknown);
    }
    let Some(container) = task.read::<ContainerRecord>(CONTAINER)? else { return Ok(Status::Lost) };
    let installed = task.installed().exists();
    let find = |record: &ProcessRecord| ProcessRef::find(record).context(|| format!("looking for {id}"));
    match (monitor, find(&container.init)?) {
        (Some(monitor), init) => {
            // If the first process has ended, the monitor is about to record that.
            let init =
                init.map_or_else(|| ProcessRef::gone(&container.init), Ok).context(|| "making an event".to_owned())?;
            Ok(Status::Running(Running { monitor, init, started_at: container.started_at, installed }))
        }
        (None, Some(init)) => match find(&container.init)? {
            Some(again) => {
                Ok(Status::Running(Running { monitor: again, init, started_at: container.started_at, installed }))
            }
            None => Ok(Status::Lost),
        },
        (None, None) => Ok(Status::Lost),
    }
}

impl Runtime {
    /// The status of a container.
    pub fn status(&self, id: &ContainerId) -> Result<Status, RuntimeError> {
        status(&self.task(id), id)
    }

    /// Lets an installed runtime send a signal to its container's first process. Blocks.
    pub fn signal_installed(&self, id: &ContainerId, signal: i32) -> Result<(), RuntimeError> {
        let installed = InstalledContainer::find(&self.task(id))?;
        installed.map_or(Ok(()), |installed| installed.kill(signal))
    }

    /// Whether the end of a container is recorded. Its monitor does that after it has copied all output.
    pub fn end_is_recorded(&self, id: &ContainerId) -> Result<bool, RuntimeError> {
        Ok(self.task(id).read::<ExitRecord>(EXIT)?.is_some())
    }

    /// The signal that asks a container's command to stop: that of its plan, or SIGTERM.
    pub fn stop_signal(&self, id: &ContainerId) -> Result<i32, RuntimeError> {
        let plan = self.task(id).read::<StoppablePlan>(PLAN)?;
        Ok(plan.and_then(|plan| plan.stop_signal).unwrap_or(libc::SIGTERM))
    }

    /// How a container ended after its monitor was killed, from what the kernel still tells about its first process.
    /// Writes the exit record, as the monitor would have done. `None` if the kernel does not tell. `running` must come
    /// from a time when the process still lived.
    pub fn end_without_monitor(&self, id: &ContainerId, running: &Running) -> Result<Option<ExitRecord>, RuntimeError> {
        let task = self.task(id);
        // The monitor may have written it before it was killed.
        if let Some(exit) = task.read::<ExitRecord>(EXIT)? {
            return Ok(Some(exit));
        }
        let end = running.init.end().context(|| format!("asking how {id} ended"))?;
        let (Some(end), Some(container)) = (end, task.read::<ContainerRecord>(CONTAINER)?) else { return Ok(None) };
        let groups = task.read::<Cgroups>(CGROUP)?.filter(|_| container.events_before.is_some());
        let exit =
            ExitRecord::of(end, groups.as_ref(), container.events_before.unwrap_or_default(), running.started_at);
        if let Err(error) = task.commit(EXIT, &exit) {
            tracing::warn!(container = %id, %error, "the end is known to this process alone");
        }
        Ok(Some(exit))
    }
}
