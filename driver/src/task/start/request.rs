//! The values that all phases of a start use.

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use runtime::plan::ContainerId;
use tokio::sync::watch;

use super::phases::PhaseTimes;
use crate::{
    events::TaskEvents,
    node::Node,
    plan::{self, NomadTask},
    task::registry::Tasks,
    traces::Attribute,
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
    /// The durations of the phases.
    pub phases: PhaseTimes,
    pulled: OnceLock<Vec<Attribute>>,
    cancelled: watch::Receiver<bool>,
    began: Instant,
}

impl StartRequest {
    /// A start that begins now.
    pub fn new(node: Arc<Node>, tasks: Tasks, task: NomadTask, cancelled: watch::Receiver<bool>) -> Self {
        let events = node.events.of_task(&task.id, &task.alloc_id, &task.name);
        let container = plan::container_id(&task.id, node.config.driver);
        let began = Instant::now();
        Self {
            node,
            tasks,
            task,
            container,
            events,
            phases: PhaseTimes::since(began),
            pulled: OnceLock::new(),
            cancelled,
            began,
        }
    }

    /// The time since the beginning.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Sets what a trace says about the pull.
    pub fn set_pull_attributes(&self, attributes: Vec<Attribute>) {
        // A start has one pull.
        drop(self.pulled.set(attributes));
    }

    /// What a trace says about the pull; empty without one.
    pub fn pull_attributes(&self) -> &[Attribute] {
        self.pulled.get().map(Vec::as_slice).unwrap_or_default()
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
