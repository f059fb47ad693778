//! Task events about reached limits: while the task runs, and a summary after its end.

use std::{io, os::fd::OwnedFd, sync::Arc};

use runtime::{CgroupEvents, ExitRecord, plan::ContainerId};
use tokio::io::{Interest, unix::AsyncFd};

use crate::{
    blocking::blocking,
    error::TaskError,
    events::{Content, TaskEvents},
    node::Node,
    sys,
};

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
            events.emit(forks_refused(pids_limit));
        }
        if emitted.oom_kills == 0 && new.oom_kills > 0 {
            events.emit(Content::OutOfMemory {});
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

fn forks_refused(limit: Option<u64>) -> Content {
    Content::ProcessesRefused { limit: limit.map(|limit| format!(" of {limit}")).unwrap_or_default() }
}

/// The events after a task's end.
pub fn remarks(record: &ExitRecord) -> Vec<Content> {
    let mut remarks = Vec::new();
    if let Some(memory) = &record.out_of_memory {
        let processes = if memory.kills == 1 { "process" } else { "processes" };
        let mut details = String::new();
        if let Some(victim) = &memory.victim {
            details += &format!(", the last one {} (process {})", victim.name, victim.pid);
        }
        if let Some(limit) = memory.limit {
            details += &format!("; limit {:.1} MiB", mebibytes(limit));
        }
        if let Some(peak) = memory.peak {
            details += &format!("; most used {:.1} MiB", mebibytes(peak));
        }
        remarks.push(Content::OutOfMemoryTotal { killed: format!("{} {processes}", memory.kills), details });
    }
    if record.forks_refused > 0 {
        remarks.push(Content::ProcessesRefusedTotal { count: record.forks_refused.to_string() });
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
        let texts = |record: &ExitRecord| remarks(record).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            texts(&record(Some(known), 0)),
            ["Out of memory: the kernel killed 1 process of the task, the last one tail (process 7); limit 16.0 MiB; \
                 most used 15.0 MiB"]
        );
        let little = OutOfMemory { kills: 2, ..OutOfMemory::default() };
        let all = texts(&record(Some(little), 3));
        assert_eq!(all[0], "Out of memory: the kernel killed 2 processes of the task");
        assert!(all[1].contains("refused it 3"), "{all:?}");
        assert!(forks_refused(Some(5)).to_string().contains("limit of 5 on"));
        assert!(forks_refused(None).to_string().contains("limit on"));
    }
}
