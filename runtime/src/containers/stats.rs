//! The counters of a container: resource usage and cgroup events.

use std::{fs::File, sync::Arc};

use rustix::fs::{StatVfs, statvfs};

use super::runtime::Runtime;
use crate::{
    cgroup::{
        CgroupEvents, Cgroups,
        open_counters::OpenCounters,
        stats::{Counters, Stats},
    },
    error::{Context, RuntimeError},
    plan::ContainerId,
    process::ProcessRef,
    state::{CGROUP, CONTAINER, ContainerRecord, PLAN, TaskDir},
};

/// The open counters of a container.
#[derive(Debug)]
pub struct StatsReader {
    id: ContainerId,
    init: ProcessRef,
    counters: Arc<Counters>,
    /// The limit of the writable layer.
    layer_limit: Option<u64>,
}

/// The use of a writable layer with a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerUse {
    /// Bytes in use, with those of its file system's own structures.
    pub bytes: u64,
    /// The limit in bytes.
    pub limit: u64,
}

/// The part of a plan that tells the limit of the writable layer.
#[derive(serde::Deserialize)]
struct LimitedPlan {
    root: LimitedRoot,
}

#[derive(serde::Deserialize)]
struct LimitedRoot {
    #[serde(default)]
    size: Option<u64>,
}

impl StatsReader {
    /// The current usage of the container; an error after it has ended.
    pub fn read(&self) -> Result<Stats, RuntimeError> {
        if self.init.ended() {
            return Err(RuntimeError::NotRunning(self.id.clone()));
        }
        Ok(self.counters.read())
    }

    /// The use of the writable layer, if it has a limit.
    pub fn layer_use(&self) -> Option<LayerUse> {
        let limit = self.layer_limit?;
        let space = self.space()?;
        let bytes = space.f_blocks.saturating_sub(space.f_bfree).saturating_mul(space.f_frsize);
        Some(LayerUse { bytes, limit })
    }

    /// What `df` shows of the container's root.
    fn space(&self) -> Option<StatVfs> {
        // The root is not kept open: an open file would hold the layer.
        statvfs(format!("/proc/{}/root", self.init.pid)).ok().filter(|_| !self.init.ended())
    }

    /// The limit of the writable layer in bytes, if it has one and is full now.
    pub fn full_layer(&self) -> Option<u64> {
        let limit = self.layer_limit?;
        let space = self.space()?;
        // A write that does not fit whole leaves a little.
        let left = space.f_bavail.saturating_mul(space.f_frsize);
        let is_full = left < MOST_LEFT.min(space.f_blocks.saturating_mul(space.f_frsize) / 16);
        (is_full || space.f_files > 0 && space.f_ffree == 0).then_some(limit)
    }
}

/// A layer with less free space is full. That of a small one is a sixteenth.
const MOST_LEFT: u64 = 1 << 20;

/// Opens the counters of the running container with this directory. Takes no lock of the container.
pub(super) fn open(task: &TaskDir, id: &ContainerId, counters: &OpenCounters) -> Result<StatsReader, RuntimeError> {
    let not_running = || RuntimeError::NotRunning(id.clone());
    let record = task.read::<ContainerRecord>(CONTAINER)?.ok_or_else(not_running)?;
    let init = ProcessRef::find(&record.init).context(|| format!("looking for {id}"))?.ok_or_else(not_running)?;
    let groups = task.read::<Cgroups>(CGROUP)?.ok_or_else(not_running)?;
    let counters = counters.open((init.pid, init.start_time), &groups);
    Ok(StatsReader { id: id.clone(), init, counters, layer_limit: layer_limit(task) })
}

/// The limit of the writable layer of the container with this directory, in bytes. Without a readable plan, the layer
/// counts as one without a limit.
pub(super) fn layer_limit(task: &TaskDir) -> Option<u64> {
    task.read::<LimitedPlan>(PLAN).ok().flatten()?.root.size
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
        open(&self.task(id), id, &self.inner.counters)
    }
}
