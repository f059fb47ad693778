//! Task events, which `nomad alloc status` shows beside a task's state changes.
//!
//! Nomad keeps the last ten of a task, so there are few events, and each contains new information.

use std::{collections::BTreeMap, time::SystemTime};

use tokio::sync::broadcast;

/// The number of events that wait for a slow listener. Events are sent per task start, so no burst is larger.
const BACKLOG: usize = 1024;

/// An event for the users of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskEvent {
    /// Nomad's id of the task.
    pub task_id: String,
    /// The allocation.
    pub alloc_id: String,
    /// The task's name in the job.
    pub task_name: String,
    /// The time of the event.
    pub at: SystemTime,
    /// The text that users see.
    pub message: String,
    /// Further values, shown in the API.
    pub annotations: BTreeMap<String, String>,
}

/// A broadcast channel for task events. An event without a listener is lost.
#[derive(Clone)]
pub struct Events(broadcast::Sender<TaskEvent>);

impl Events {
    /// A channel without listeners.
    pub fn new() -> Self {
        Self(broadcast::channel(BACKLOG).0)
    }

    /// A stream of all events from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<TaskEvent> {
        self.0.subscribe()
    }

    /// A sender for the events of one task.
    pub fn of_task(&self, task_id: &str, alloc_id: &str, task_name: &str) -> TaskEvents {
        TaskEvents {
            events: self.clone(),
            task_id: task_id.to_owned(),
            alloc_id: alloc_id.to_owned(),
            task_name: task_name.to_owned(),
        }
    }
}

/// Sends the events of one task.
#[derive(Clone)]
pub struct TaskEvents {
    events: Events,
    task_id: String,
    alloc_id: String,
    task_name: String,
}

impl TaskEvents {
    /// Sends one event.
    pub fn emit(&self, message: impl Into<String>, annotations: impl IntoIterator<Item = (&'static str, String)>) {
        let event = TaskEvent {
            task_id: self.task_id.clone(),
            alloc_id: self.alloc_id.clone(),
            task_name: self.task_name.clone(),
            at: SystemTime::now(),
            message: message.into(),
            annotations: annotations.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        };
        // An error means that no agent listens at the moment.
        drop(self.events.0.send(event));
    }
}
