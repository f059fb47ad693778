//! The unchanging facts about one task.

use std::{
    path::PathBuf,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use runtime::plan::ContainerId;

use super::driver_state::DriverState;
use crate::{
    events::{Events, TaskEvents},
    plan::NomadTask,
};

/// Facts that do not change in a task's life.
#[derive(Debug)]
pub struct TaskInfo {
    /// Nomad's id of the task.
    pub task_id: String,
    /// The task's name in the job.
    pub name: String,
    /// The allocation.
    pub alloc_id: String,
    /// The allocation directory.
    pub alloc_dir: PathBuf,
    /// The driver's part of the handle; set when the command runs.
    state: OnceLock<DriverState>,
    /// Whether the agent has made a call that needs the handle.
    attended: AtomicBool,
}

impl TaskInfo {
    /// The facts that a task has before its start.
    pub fn new(task: &NomadTask) -> Self {
        Self {
            task_id: task.id.clone(),
            name: task.name.clone(),
            alloc_id: task.alloc_id.clone(),
            alloc_dir: task.alloc_dir.clone(),
            state: OnceLock::new(),
            attended: AtomicBool::new(false),
        }
    }

    /// Notes a call that needs the handle; whether it is the first one.
    pub fn attended_first(&self) -> bool {
        !self.attended.swap(true, Ordering::Relaxed)
    }

    /// The driver's part of the handle, once the command runs.
    pub fn state(&self) -> Option<&DriverState> {
        self.state.get()
    }

    /// The task's container, once the command runs.
    pub fn container(&self) -> Option<ContainerId> {
        self.state().map(|state| state.container.clone())
    }

    /// Sets the driver's part of the handle, once.
    pub fn set_state(&self, state: DriverState) {
        // A second value is impossible: a task is started or recovered once.
        drop(self.state.set(state));
    }

    /// The sender of this task's events.
    pub fn events(&self, events: &Events) -> TaskEvents {
        events.of_task(&self.task_id, &self.alloc_id, &self.name)
    }
}
