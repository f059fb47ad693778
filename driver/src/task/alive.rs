//! A container whose command runs: found again by its state directory, and watched until it ends.

use std::{sync::Arc, time::SystemTime};

use runtime::{ExitRecord, Running, Status, plan::ContainerId};
use tokio::io::Interest;

use super::{DriverState, Exit, TaskError, blocking, hits};
use crate::{engine::Engine, sys};

/// A container whose command runs.
pub struct Alive {
    /// Its processes.
    pub running: Running,
    container: ContainerId,
    memory_limit: Option<u64>,
}

/// What recovery found.
pub enum Recovered {
    /// It runs.
    Running(Alive),
    /// It ended while nobody watched.
    Ended {
        /// How.
        exit: Exit,
        /// When it had started, if that is known.
        started_at: Option<SystemTime>,
    },
}

/// Finds a task's container again by what its state directory says.
pub async fn recover(engine: &Arc<Engine>, state: &DriverState) -> Result<Recovered, TaskError> {
    let (worker, container) = (engine.clone(), state.container.clone());
    let status = blocking(move || worker.status(&container)).await?;
    match status {
        Status::Running(running) => {
            Ok(Recovered::Running(Alive { running, container: state.container.clone(), memory_limit: None }))
        }
        Status::Exited(record) => {
            Ok(Recovered::Ended { started_at: Some(record.started_at), exit: exit_of(&record, None) })
        }
        Status::Lost => Ok(Recovered::Ended { started_at: None, exit: lost() }),
        Status::Unknown => Err(TaskError::Unknown(state.container.to_string())),
    }
}

impl AsRef<Running> for Alive {
    fn as_ref(&self) -> &Running {
        &self.running
    }
}

impl Alive {
    pub(super) fn new(running: Running, container: ContainerId, memory_limit: Option<u64>) -> Self {
        Self { running, container, memory_limit }
    }

    /// Its name in the runtime.
    pub fn container(&self) -> &ContainerId {
        &self.container
    }

    /// Waits for the container's end and tells how it ended.
    pub async fn end(self: Arc<Self>, engine: Arc<Engine>) -> Exit {
        // The monitor ends last, after it wrote the exit record; when it was killed, the command itself is what is left to watch.
        for process in [&self.running.monitor, &self.running.init] {
            if let Err(error) = ended(process).await {
                tracing::error!(container = %self.container, pid = process.pid, %error, "cannot watch a process");
            }
            let (worker, container) = (engine.clone(), self.container.clone());
            match blocking(move || worker.status(&container)).await {
                Ok(Status::Exited(record)) => return exit_of(&record, self.memory_limit),
                Ok(Status::Running(_)) => {
                    tracing::warn!(container = %self.container, "monitor ended before its task; the exit status may be lost");
                }
                Ok(Status::Lost) => break,
                Ok(Status::Unknown) => return lost(),
                Err(error) => tracing::error!(container = %self.container, %error, "cannot read a task's state"),
            }
        }
        self.end_without_monitor(engine).await
    }

    /// The end of a container whose monitor was killed, as far as the kernel tells it to others than a parent.
    async fn end_without_monitor(self: Arc<Self>, engine: Arc<Engine>) -> Exit {
        let alive = self.clone();
        let told = blocking(move || {
            let told = engine.runtime.end_without_monitor(&alive.container, &alive.running);
            told.map_err(TaskError::internal)
        });
        match told.await {
            Ok(Some(record)) => exit_of(&record, self.memory_limit),
            Ok(None) => lost(),
            Err(error) => {
                tracing::error!(container = %self.container, %error, "cannot ask how a task ended");
                lost()
            }
        }
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
        remarks: hits::remarks(record),
    }
}

/// The end in words. Nomad takes any text for a failure: a task that ended well although the kernel killed a child of it keeps
/// its success.
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

/// The end of a task whose monitor was killed before it could write down how it ended, and that nobody else saw.
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
