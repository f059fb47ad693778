//! A task that meets its limits: told while it runs, and once more in all when it has ended.

use std::{future::Future, io, os::fd::OwnedFd, sync::Arc};

use runtime::{CgroupEvents, ExitRecord, plan::ContainerId};
use tokio::{
    io::{Interest, unix::AsyncFd},
    task::JoinHandle,
};

use super::{TaskError, blocking};
use crate::{engine::Engine, events::TaskEvents, sys};

/// Work that ends when nobody wants it any more.
pub struct AbortOnDrop(JoinHandle<()>);

impl AbortOnDrop {
    /// Starts it.
    pub fn of(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(work))
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Tells the first time that a container's limit on processes refused one, and the first time that the kernel killed one for
/// want of memory. Waits for the kernel to tell; a kernel that does not leaves it to the end.
pub async fn watch(engine: Arc<Engine>, container: ContainerId, events: TaskEvents) {
    let (worker, id) = (engine.clone(), container.clone());
    let looked = blocking(move || worker.runtime.cgroup_events(&id).map_err(TaskError::internal)).await;
    let watched = looked.and_then(|(before, files, pids_limit)| {
        let files: io::Result<Vec<_>> =
            files.into_iter().map(|file| sys::watch(OwnedFd::from(file), Interest::PRIORITY)).collect();
        Ok((before, files.map_err(TaskError::internal)?, pids_limit))
    });
    let (before, files, pids_limit) = match watched {
        Ok(watched) => watched,
        // Mostly a task that has ended already.
        Err(error) => return tracing::debug!(%container, %error, "limits are not watched"),
    };
    let mut told = CgroupEvents::default();
    while told.forks_refused == 0 || told.oom_kills == 0 {
        if changed(&files).await.is_err() {
            return;
        }
        let (worker, id) = (engine.clone(), container.clone());
        let looked = blocking(move || worker.runtime.cgroup_events(&id).map_err(TaskError::internal)).await;
        let Ok((now, _, _)) = looked else { return };
        let new = now.since(before);
        if told.forks_refused == 0 && new.forks_refused > 0 {
            events.emit(refusing(pids_limit), []);
        }
        if told.oom_kills == 0 && new.oom_kills > 0 {
            events.emit("Out of memory: the kernel is killing processes of the task", []);
        }
        told = new;
    }
}

/// Waits until one of the files tells a change.
async fn changed(files: &[AsyncFd<OwnedFd>]) -> io::Result<()> {
    if files.is_empty() {
        return std::future::pending().await;
    }
    let waits = files.iter().map(|file| Box::pin(file.ready(Interest::PRIORITY)));
    let (ready, _, _) = futures_util::future::select_all(waits).await;
    ready?.clear_ready();
    Ok(())
}

fn refusing(limit: Option<u64>) -> String {
    let limit = limit.map(|limit| format!(" of {limit}")).unwrap_or_default();
    format!("The task has reached its limit{limit} on processes and threads (option pids_limit): it cannot make more")
}

/// What a task's end leaves to be told.
pub fn remarks(record: &ExitRecord) -> Vec<String> {
    let mut remarks = Vec::new();
    if let Some(memory) = &record.out_of_memory {
        let processes = if memory.kills == 1 { "process" } else { "processes" };
        let mut text = format!("Out of memory: the kernel killed {} {processes} of the task", memory.kills);
        if let Some(victim) = &memory.victim {
            text += &format!(", the last one {} (process {})", victim.name, victim.pid);
        }
        if let Some(limit) = memory.limit {
            text += &format!("; limit {:.1} MiB", mebibytes(limit));
        }
        if let Some(peak) = memory.peak {
            text += &format!("; most used {:.1} MiB", mebibytes(peak));
        }
        remarks.push(text);
    }
    if record.forks_refused > 0 {
        remarks.push(format!(
            "The task's limit on processes and threads (option pids_limit) refused it {} of them",
            record.forks_refused
        ));
    }
    remarks
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / 1_048_576.0
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use runtime::{ExitRecord, OutOfMemory, Victim};

    use super::{refusing, remarks};

    #[test]
    fn an_end_is_told_with_what_is_known() {
        let record = |out_of_memory, forks_refused| ExitRecord {
            exit_code: 0,
            signal: 0,
            oom_killed: false,
            out_of_memory,
            forks_refused,
            started_at: UNIX_EPOCH,
            finished_at: UNIX_EPOCH,
        };
        assert!(remarks(&record(None, 0)).is_empty());
        let victim = Some(Victim { name: "tail".into(), pid: 7 });
        let known = OutOfMemory { kills: 1, limit: Some(16 << 20), peak: Some(15 << 20), victim };
        assert_eq!(
            remarks(&record(Some(known), 0)),
            ["Out of memory: the kernel killed 1 process of the task, the last one tail (process 7); limit 16.0 MiB; \
                 most used 15.0 MiB"]
        );
        let little = OutOfMemory { kills: 2, ..OutOfMemory::default() };
        let all = remarks(&record(Some(little), 3));
        assert_eq!(all[0], "Out of memory: the kernel killed 2 processes of the task");
        assert!(all[1].contains("refused it 3"), "{all:?}");
        assert!(refusing(Some(5)).contains("limit of 5 on"));
        assert!(refusing(None).contains("limit on"));
    }
}
