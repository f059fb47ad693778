//! The counters of a container: resource usage and cgroup events.

use std::fs::File;

use super::runtime::Runtime;
use crate::{
    cgroup::{
        CgroupEvents, Cgroups,
        stats::{Counters, Stats},
    },
    error::{Context, RuntimeError},
    plan::ContainerId,
    process::ProcessRef,
    state::{CGROUP, CONTAINER, ContainerRecord, TaskDir},
};

/// The open counters of a container.
#[derive(Debug)]
pub struct StatsReader {
    id: ContainerId,
    init: ProcessRef,
    counters: Counters,
}

impl StatsReader {
    /// The current usage of the container; an error after it has ended.
    pub fn read(&self) -> Result<Stats, RuntimeError> {
        if self.init.ended() {
            return Err(RuntimeError::NotRunning(self.id.clone()));
        }
        Ok(self.counters.read())
    }
}

/// Opens the counters of the running container with this directory. Takes no lock.
pub(super) fn open(task: &TaskDir, id: &ContainerId) -> Result<StatsReader, RuntimeError> {
    let not_running = || RuntimeError::NotRunning(id.clone());
    let record = task.read::<ContainerRecord>(CONTAINER)?.ok_or_else(not_running)?;
    let init = ProcessRef::find(&record.init).context(|| format!("looking for {id}"))?.ok_or_else(not_running)?;
    let groups = task.read::<Cgroups>(CGROUP)?.ok_or_else(not_running)?;
    Ok(StatsReader { id: id.clone(), init, counters: Counters::open(&groups) })
}

impl Runtime {
    /// The events that the container's cgroups have counted, files that become readable when an event is counted, and
    /// the limit on processes.
    pub fn cgroup_events(&self, id: &ContainerId) -> Result<(CgroupEvents, Vec<File>, Option<u64>), RuntimeError> {
        let groups = self.task(id).read::<Cgroups>(CGROUP)?.ok_or_else(|| RuntimeError::NotRunning(id.clone()))?;
        // The files are opened before the events are read, so that no event is missed.
        let files = groups.event_files();
        Ok((groups.events(), files, groups.pids_limit()))
    }

    /// Opens the counters of a running container.
    pub fn stats_reader(&self, id: &ContainerId) -> Result<StatsReader, RuntimeError> {
        open(&self.task(id), id)
    }
}
