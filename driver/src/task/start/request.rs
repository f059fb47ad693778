//! The values that all phases of a start use.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use runtime::plan::ContainerId;
use tokio::sync::watch;

use crate::{
    events::TaskEvents,
    node::Node,
    plan::{self, NomadTask},
    task::registry::Tasks,
};

/// A start in progress.
pub struct StartRequest {
    /// The node on which the task starts.
    pub node: Arc<Node>,
    /// The known tasks: their containers are not leftovers.
    pub tasks: Tasks,
    /// Nomad's part of the task.
    pub task: NomadTask,
    /// The id of the container-to-be.
    pub container: ContainerId,
    /// The sender of the task's events.
    pub events: TaskEvents,
    cancelled: watch::Receiver<bool>,
    began: Instant,
}

impl StartRequest {
    /// A start that begins now.
    pub fn new(node: Arc<Node>, tasks: Tasks, task: NomadTask, cancelled: watch::Receiver<bool>) -> Self {
        let events = node.events.of_task(&task.id, &task.alloc_id, &task.name);
        let container = plan::container_id(&task.id, node.config.driver);
        Self { node, tasks, task, container, events, cancelled, began: Instant::now() }
    }

    /// The time since the beginning.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Whether the start was cancelled.
    pub fn is_cancelled(&self) -> bool {
        *self.cancelled.borrow()
    }

    /// Tells whether the start was cancelled, for work on another thread.
    pub fn cancelled_flag(&self) -> impl Fn() -> bool + Send + 'static {
        let cancelled = self.cancelled.clone();
        move || *cancelled.borrow()
    }

    /// Completes when the start is cancelled.
    pub fn cancellation(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut cancelled = self.cancelled.clone();
        async move {
            // If the sender is gone, the owner is gone, and the start counts as cancelled.
            drop(cancelled.wait_for(|cancelled| *cancelled).await);
        }
    }
}
