//! The unchanging facts about one task.

use std::{
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use runtime::{Mark, plan::ContainerId};

use super::driver_state::DriverState;
use crate::{
    events::{Content, Events, TaskEvents},
    metrics::TaskLabels,
    node::Node,
    plan::NomadTask,
};

/// Facts that do not change in a task's life.
#[derive(Debug)]
pub struct TaskInfo {
    /// Nomad's id of the task.
    pub task_id: String,
    /// The task's name in the job.
    pub name: String,
    /// The job's namespace.
    pub namespace: String,
    /// The job's name.
    pub job: String,
    /// The group's name.
    pub group: String,
    /// The allocation.
    pub alloc_id: String,
    /// The allocation directory.
    pub alloc_dir: PathBuf,
    /// The driver's part of the handle; set when the command runs.
    state: OnceLock<DriverState>,
    /// Whether the agent has made a call that needs the handle.
    attended: AtomicBool,
    /// Whether an event has told that the writable layer is full.
    told_full_layer: AtomicBool,
    /// The commands that run in the task now.
    commands: AtomicUsize,
    /// The commands that were executed in the task.
    executed: AtomicU64,
    /// The earlier starts of the same task of the allocation.
    restarts: AtomicU64,
}

/// A command that counts among those of its task. Dropping it ends that.
#[derive(Debug)]
pub struct CommandSlot(Arc<TaskInfo>);

impl Drop for CommandSlot {
    fn drop(&mut self) {
        self.0.commands.fetch_sub(1, Ordering::Relaxed);
    }
}

impl TaskInfo {
    /// The facts that a task has before its start.
    pub fn new(task: &NomadTask) -> Self {
        Self {
            task_id: task.id.clone(),
            name: task.name.clone(),
            namespace: task.namespace.clone(),
            job: task.job_name.clone(),
            group: task.task_group_name.clone(),
            alloc_id: task.alloc_id.clone(),
            alloc_dir: task.alloc_dir.clone(),
            state: OnceLock::new(),
            attended: AtomicBool::new(false),
            told_full_layer: AtomicBool::new(false),
            commands: AtomicUsize::new(0),
            executed: AtomicU64::new(0),
            restarts: AtomicU64::new(0),
        }
    }

    /// The labels of the task's metrics, with this name for the task.
    pub fn labels(&self, task: &str) -> TaskLabels {
        TaskLabels::new(&self.namespace, &self.job, &self.group, task, &self.alloc_id)
    }

    /// The commands that were executed in the task, and those that run now.
    pub fn commands(&self) -> (u64, u64) {
        (self.executed.load(Ordering::Relaxed), self.commands.load(Ordering::Relaxed) as u64)
    }

    /// The earlier starts of the same task of the allocation.
    pub fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::Relaxed)
    }

    /// Sets the number of earlier starts.
    pub fn set_restarts(&self, restarts: u64) {
        self.restarts.store(restarts, Ordering::Relaxed);
    }

    /// Counts a command of the task, unless `limit` commands run in it.
    pub fn command_slot(self: &Arc<Self>, limit: usize) -> Option<CommandSlot> {
        let one_more = |count: usize| (count < limit).then_some(count + 1);
        let counted = self.commands.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        counted.ok()?;
        self.executed.fetch_add(1, Ordering::Relaxed);
        Some(CommandSlot(self.clone()))
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

    /// Emits that the container's writable layer has reached its limit in bytes, once in the container's life.
    pub fn tell_full_layer(&self, node: &Node, container: &ContainerId, limit: u64) {
        if self.told_full_layer.swap(true, Ordering::Relaxed) {
            return;
        }
        let (runtime, container) = (node.runtime.clone(), container.clone());
        self.events(&node.events).emit_at_delivery(move || match runtime.mark(&container, Mark::FullLayer) {
            Ok(false) => None,
            marked => {
                if let Err(error) = marked {
                    tracing::warn!(%container, %error, "a full writable layer may be reported twice");
                }
                let mebibytes = format!("{:.1}", limit as f64 / 1_048_576.0);
                Some(Content::LayerFull { mebibytes, limit_bytes: limit.to_string() })
            }
        });
    }

    /// The sender of this task's events.
    pub fn events(&self, events: &Events) -> TaskEvents {
        events.of_task(&self.task_id, &self.alloc_id, &self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_counted_up_to_the_limit_and_until_their_end() {
        let info = Arc::new(TaskInfo::new(&NomadTask::default()));
        let (first, second) = (info.command_slot(2), info.command_slot(2));
        assert!(first.is_some() && second.is_some());
        assert!(info.command_slot(2).is_none(), "two run already");
        drop(first);
        assert!(info.command_slot(2).is_some());
        assert!(info.command_slot(0).is_none());
        assert_eq!(info.commands(), (3, 1));
    }
}
