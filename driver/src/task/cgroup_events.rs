//! Task events about reached limits: while the task runs, and a summary after its end.

use std::{io, os::fd::OwnedFd, sync::Arc};

use runtime::{CgroupEvents, ExitRecord, plan::ContainerId};
use tokio::io::{Interest, unix::AsyncFd};

use crate::{blocking::blocking, error::TaskError, events::TaskEvents, node::Node, sys};

/// Emits an event at the first refused fork and at the first out-of-memory kill in a container. Waits for the
/// kernel's notifications; on a kernel without them, only the summary after the end remains.
pub async fn watch(node: Arc<Node>, container: ContainerId, events: TaskEvents) {
    let (worker, id) = (node.clone(), container.clone());
    let looked = blocking(move || worker.runtime.cgroup_events(&id).map_err(TaskError::internal)).await;
    let watched = looked.and_then(|(before, files, pids_limit)| {
        let files: io::Result<Vec<_>> =
            files.into_iter().map(|file| sys::watch(OwnedFd::from(file), Interest::PRIORITY)).collect();
        Ok((before, files.map_err(TaskError::internal)?, pids_limit))
    });
    let (before, files, pids_limit) = match watched {
        Ok(watched) => watched,
        // Usually the task has ended already.
        Err(error) => return tracing::debug!(%container, %error, "limits are not watched"),
    };
    let mut emitted = CgroupEvents::default();
    while emitted.forks_refused == 0 || emitted.oom_kills == 0 {
        if changed(&files).await.is_err() {
            return;
        }
        let (worker, id) = (node.clone(), container.clone());
        let looked = blocking(move || worker.runtime.cgroup_events(&id).map_err(TaskError::internal)).await;
        let Ok((now, _, _)) = looked else { return };
        let new = now.since(before);
        if emitted.forks_refused == 0 && new.forks_refused > 0 {
            events.emit(forks_refused(pids_limit), []);
        }
        if emitted.oom_kills == 0 && new.oom_kills > 0 {
            events.emit("Out of memory: the kernel is killing processes of the task", []);
        }
        emitted = new;
    }
}

/// Waits until the kernel reports a change of one of the files.
async fn changed(files: &[AsyncFd<OwnedFd>]) -> io::Result<()> {
    if files.is_empty() {
        return std::future::pending().await;
    }
    let waits = files.iter().map(|file| Box::pin(file.ready(Interest::PRIORITY)));
    let (ready, _, _) = futures_util::future::select_all(waits).await;
    ready?.clear_ready();
    Ok(())
}

fn forks_refused(limit: Option<u64>) -> String {
    let limit = limit.map(|limit| format!(" of {limit}")).unwrap_or_default();
    format!("The task has reached its limit{limit} on processes and threads (option pids_limit): it cannot make more")
}

/// The texts of the events after a task's end.
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

    use super::{forks_refused, remarks};

    #[test]
    fn the_summary_names_what_the_record_knows() {
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
        assert!(forks_refused(Some(5)).contains("limit of 5 on"));
        assert!(forks_refused(None).contains("limit on"));
    }
}
