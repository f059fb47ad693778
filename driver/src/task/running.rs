//! A running container: found again by its state directory, and watched until it ends.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use runtime::{ExitRecord, Running, Status, logs::LogWriters, plan::ContainerId};
use tokio::{io::Interest, sync::oneshot};

use super::{DriverState, Exit, cgroup_events};
use crate::{blocking::blocking, error::TaskError, events::Content, node::Node, sys};

/// The remark for a task that ended without monitor before its logs were held.
const UNREAD: Content = Content::OutputUnread {};

/// The last output of a terminal without a monitor waits this long for a reader of the log, as the monitor's would.
const TERMINAL_PATIENCE: Duration = Duration::from_secs(2);

/// A container with a running command.
pub struct RunningContainer {
    /// The container's processes.
    pub processes: Running,
    id: ContainerId,
    /// In bytes. Known only to the process that started the container.
    memory_limit: Option<u64>,
}

/// The container of a task that another plugin process started.
pub enum Recovered {
    /// The container runs.
    Running(RunningContainer),
    /// The container ended while no plugin ran.
    Ended {
        /// The end.
        exit: Exit,
        /// The time of its start, if it is known.
        started_at: Option<SystemTime>,
    },
}

/// Finds a task's container again by its state directory.
pub async fn recover(node: &Arc<Node>, state: &DriverState) -> Result<Recovered, TaskError> {
    let (worker, container) = (node.clone(), state.container.clone());
    match blocking(move || worker.status(&container)).await? {
        Status::Running(processes) => {
            Ok(Recovered::Running(RunningContainer::new(processes, state.container.clone(), None)))
        }
        Status::Exited(record) => {
            Ok(Recovered::Ended { started_at: Some(record.started_at), exit: exit_of(&record, None) })
        }
        Status::Lost => {
            let exit = Exit { remarks: vec![UNREAD], ..lost() };
            Ok(Recovered::Ended { started_at: None, exit })
        }
        Status::Unknown => Err(TaskError::Unknown(state.container.to_string())),
    }
}

impl AsRef<Running> for RunningContainer {
    fn as_ref(&self) -> &Running {
        &self.processes
    }
}

impl RunningContainer {
    /// A container in which the command was executed.
    pub fn new(processes: Running, id: ContainerId, memory_limit: Option<u64>) -> Self {
        Self { processes, id, memory_limit }
    }

    /// The container's id in the runtime.
    pub fn id(&self) -> &ContainerId {
        &self.id
    }

    /// Sends a signal to the command.
    pub async fn signal(&self, node: &Arc<Node>, signal: i32) -> Result<(), TaskError> {
        let sent = if self.processes.installed {
            let (node, id) = (node.clone(), self.id.clone());
            blocking(move || node.runtime.signal_installed(&id, signal).map_err(TaskError::internal)).await
        } else {
            self.processes.signal(signal).map_err(TaskError::internal)
        };
        sent.map_err(|error| TaskError::Internal(format!("signal {signal}: {error}")))
    }

    /// Waits for the container's end. `terminal_copied` comes when this process has nothing more to copy from the
    /// container's terminal to its log.
    pub async fn end(self: Arc<Self>, node: Arc<Node>, terminal_copied: oneshot::Receiver<()>) -> Exit {
        // The monitor ends last, after it wrote the exit record. If the monitor was killed, the command itself is
        // watched, and its logs are held.
        let had_monitor = self.processes.monitor.pid != self.processes.init.pid;
        let mut logs = if had_monitor { None } else { self.hold_logs(&node).await };
        for process in [&self.processes.monitor, &self.processes.init] {
            if let Err(error) = ended(process).await {
                tracing::error!(container = %self.id, pid = process.pid, %error, "cannot watch a process");
            }
            // A monitor that this process started stays a zombie until it is reaped. Another process is no child of
            // this process, and nothing happens to it.
            if let Err(error) = process.reap() {
                tracing::warn!(container = %self.id, pid = process.pid, %error, "an ended monitor stays a zombie");
            }
            let (worker, container) = (node.clone(), self.id.clone());
            match blocking(move || worker.status(&container)).await {
                Ok(Status::Exited(record)) => return exit_of(&record, self.memory_limit),
                Ok(Status::Running(_)) => {
                    logs = self.hold_logs(&node).await;
                    tracing::warn!(container = %self.id, "monitor ended before its task; the exit status may be lost");
                }
                Ok(Status::Lost) => break,
                Ok(Status::Unknown) => return lost(),
                Err(error) => tracing::error!(container = %self.id, %error, "cannot read a task's state"),
            }
        }
        // Before the record of the end, which tells the copying task that the monitor has copied everything.
        drop(tokio::time::timeout(TERMINAL_PATIENCE, terminal_copied).await);
        self.end_without_monitor(node, logs).await
    }

    /// Keeps the content of the log FIFOs after the monitor was killed.
    async fn hold_logs(&self, node: &Arc<Node>) -> Option<LogWriters> {
        let (worker, container) = (node.clone(), self.id.clone());
        let held = blocking(move || worker.runtime.hold_logs(&container).map_err(TaskError::internal)).await;
        held.unwrap_or_else(|error| {
            tracing::warn!(container = %self.id, %error, "the logs of a task without monitor are not held");
            None
        })
    }

    /// The end of a container after its monitor was killed, as far as the kernel reports it to a process that is no
    /// parent. Output that no reader took is counted, if the logs are held.
    async fn end_without_monitor(self: Arc<Self>, node: Arc<Node>, logs: Option<LogWriters>) -> Exit {
        let container = self.clone();
        let is_counted = logs.as_ref().is_some_and(|logs| !logs.missed());
        let record = blocking(move || {
            if let Some(Err(error)) = logs.map(|logs| node.runtime.count_unread(&container.id, logs)) {
                tracing::warn!(container = %container.id, %error, "lost output was not counted");
            }
            let record = node.runtime.end_without_monitor(&container.id, &container.processes);
            record.map_err(TaskError::internal)
        });
        let mut exit = match record.await {
            Ok(Some(record)) => exit_of(&record, self.memory_limit),
            Ok(None) => lost(),
            Err(error) => {
                tracing::error!(container = %self.id, %error, "cannot ask how a task ended");
                lost()
            }
        };
        if !is_counted {
            exit.remarks.push(UNREAD);
        }
        exit
    }
}

async fn ended(process: &runtime::ProcessRef) -> std::io::Result<()> {
    let descriptor = sys::watch(process.pidfd.try_clone()?, Interest::READABLE)?;
    descriptor.readable().await.map(drop)
}

fn exit_of(record: &ExitRecord, memory_limit: Option<u64>) -> Exit {
    Exit {
        code: record.exit_code,
        signal: record.signal,
        oom_killed: record.oom_killed,
        finished_at: record.finished_at,
        message: message(record, memory_limit),
        remarks: cgroup_events::remarks(record),
    }
}

/// The failure in words. Nomad takes any text for a failure, so a task that ended with 0 has none, even if the kernel
/// killed one of its processes.
fn message(record: &ExitRecord, memory_limit: Option<u64>) -> Option<String> {
    match (record.exit_code, record.signal) {
        (0, 0) => None,
        _ if record.oom_killed => {
            let memory = record.out_of_memory.clone().unwrap_or_default();
            let limit = memory.limit.or(memory_limit).map(|limit| limit >> 20);
            let limit = limit.map(|limit| format!(": the task reached its memory limit of {limit} MiB"));
            let victim = memory.victim.map(|victim| format!(" (killed: {}, process {})", victim.name, victim.pid));
            Some(format!("OOM Killed{}{}", limit.unwrap_or_default(), victim.unwrap_or_default()))
        }
        (code, 0) => Some(format!("Container exited with non-zero exit code: {code}")),
        (_, signal) => Some(format!("Container was killed by signal {signal}")),
    }
}

/// The end of a task with a lost exit status: its monitor was killed before it could record the end.
fn lost() -> Exit {
    Exit {
        code: 255,
        signal: 0,
        oom_killed: false,
        finished_at: SystemTime::now(),
        message: Some(
            "the task ended, but its exit status was lost because its monitor process had been killed".to_owned(),
        ),
        remarks: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use runtime::ExitRecord;

    use super::message;

    #[test]
    fn only_failures_have_a_message() {
        let record = |exit_code, signal, oom_killed| ExitRecord {
            exit_code,
            signal,
            oom_killed,
            out_of_memory: None,
            forks_refused: 0,
            started_at: UNIX_EPOCH,
            finished_at: UNIX_EPOCH,
        };
        for (record, limit, expected) in [
            (record(0, 0, false), None, None),
            (record(0, 0, true), Some(64 << 20), None),
            (record(3, 0, false), None, Some("Container exited with non-zero exit code: 3")),
            (record(143, 15, false), None, Some("Container was killed by signal 15")),
            (record(137, 9, true), Some(64 << 20), Some("OOM Killed: the task reached its memory limit of 64 MiB")),
            (record(137, 9, true), None, Some("OOM Killed")),
        ] {
            assert_eq!(message(&record, limit).as_deref(), expected);
        }
    }
}
