//! Looking at containers: for commands that run beside plugins, and on nodes without a running one.
//!
//! An observer makes, changes and locks nothing. A record that cannot be read, because it is damaged or of a newer
//! build, is a problem of its container and hides no other container.

use std::{
    io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use super::{
    runtime::containers,
    stats::{self, StatsReader},
    status::{Status, status},
    sweep::orphaned_layers,
    watch::TaskWatch,
};
use crate::{
    cgroup::open_counters::OpenCounters,
    error::{Context, RuntimeError},
    plan::{ContainerId, ContainerPlan},
    rootfs::{LayerLimit, WritableLayer, writable_layer},
    state::{CONTAINER, ExitRecord, PLAN, TaskDir, is_marked},
    volumes::{NamedVolumeRecord, named_volumes},
};

/// Reads the records of a state directory and of its data directory.
#[derive(Debug, Clone)]
pub struct Observer {
    state_dir: PathBuf,
    data_dir: PathBuf,
}

/// A container as its records and the kernel describe it.
#[derive(Debug)]
pub struct ContainerView {
    /// The container's name.
    pub id: ContainerId,
    /// Its plan, if there is a readable one.
    pub plan: Option<ContainerPlan>,
    /// Its state.
    pub state: ContainerState,
    /// Records that could not be read.
    pub problems: Vec<String>,
}

/// The state of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContainerState {
    /// It is being made, or the process that made it was killed.
    Starting,
    /// Its command runs.
    Running {
        /// The command's first process.
        pid: i32,
        /// The container's monitor; `None` if the monitor was killed.
        monitor: Option<i32>,
        /// When the command was started.
        started_at: SystemTime,
    },
    /// Its command has ended.
    Exited(ExitRecord),
    /// It has ended, and there is no record of its end.
    Lost,
    /// It is being removed, or the process that removed it was killed.
    Removing,
    /// Its records cannot be read.
    Unreadable,
}

impl Observer {
    /// Looks at these directories, which need not exist.
    pub fn new(state_dir: &Path, data_dir: &Path) -> Self {
        Self { state_dir: state_dir.to_owned(), data_dir: data_dir.to_owned() }
    }

    /// All containers, in any state; none if no task was started since the machine booted.
    pub fn containers(&self) -> Result<Vec<ContainerView>, RuntimeError> {
        match std::fs::symlink_metadata(crate::state::tasks(&self.state_dir)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            found => found.context(|| format!("looking at {}", self.state_dir.display()))?,
        };
        Ok(containers(&self.state_dir)?.iter().filter_map(|id| self.container(id)).collect())
    }

    /// One container; `None` if there is no such container.
    pub fn container(&self, id: &ContainerId) -> Option<ContainerView> {
        let task = TaskDir::new(&self.state_dir, id);
        let mut problems = Vec::new();
        let marked = is_marked(&task);
        let ran = task.file(CONTAINER).exists();
        let state = match status(&task, id) {
            Ok(Status::Unknown) => return None,
            Ok(Status::Running(running)) => ContainerState::Running {
                pid: running.init.pid,
                monitor: Some(running.monitor.pid).filter(|monitor| *monitor != running.init.pid),
                started_at: running.started_at,
            },
            Ok(Status::Exited(_) | Status::Lost) if marked && ran => ContainerState::Removing,
            Ok(Status::Lost) if marked => ContainerState::Starting,
            Ok(Status::Exited(exit)) => ContainerState::Exited(exit),
            Ok(Status::Lost) => ContainerState::Lost,
            Err(error) => {
                problems.push(error.to_string());
                ContainerState::Unreadable
            }
        };
        let plan = task.read(PLAN).unwrap_or_else(|error| {
            problems.push(error.to_string());
            None
        });
        Some(ContainerView { id: id.clone(), plan, state, problems })
    }

    /// Opens the counters of a running container.
    pub fn stats(&self, id: &ContainerId) -> Result<StatsReader, RuntimeError> {
        stats::open(&TaskDir::new(&self.state_dir, id), id, &OpenCounters::default())
    }

    /// Watches the containers' records.
    pub fn watch(&self) -> Result<TaskWatch, RuntimeError> {
        let tasks = crate::state::tasks(&self.state_dir);
        TaskWatch::new(&tasks).context(|| format!("watching {}", tasks.display()))
    }

    /// The directory with everything that a container has written outside its mounts. It need not exist.
    pub fn writable_layer(&self, id: &ContainerId) -> PathBuf {
        writable_layer(&self.data_dir, id.as_str())
    }

    /// The mechanism that limits the writable layer of a container; `None` if it has no limit.
    pub fn layer_limit(&self, id: &ContainerId) -> Option<LayerLimit> {
        WritableLayer::of(&self.data_dir, id.as_str()).limit()
    }

    /// The writable layers without a container, by the ids that their containers had.
    pub fn orphaned_layers(&self) -> Result<Vec<String>, RuntimeError> {
        orphaned_layers(&self.data_dir, &self.state_dir)
    }

    /// The complete OCI spec of a container. It need not exist.
    pub fn spec(&self, id: &ContainerId) -> PathBuf {
        TaskDir::new(&self.state_dir, id).bundle().join("config.json")
    }

    /// The volumes with a name, and the problems of those whose options cannot be read.
    pub fn named_volumes(&self) -> Result<(Vec<NamedVolumeRecord>, Vec<String>), RuntimeError> {
        named_volumes(&self.state_dir, &self.data_dir)
    }
}
