//! The published state of a task.

use std::time::SystemTime;

use super::lifecycle::Phase;
use crate::events::Content;

/// The state that the owner publishes.
#[derive(Debug, Clone)]
pub struct TaskView {
    /// The task's phase.
    pub phase: Phase,
    /// The time at which the command was executed.
    pub started_at: Option<SystemTime>,
    /// The end of the task; present from [`Phase::Exited`] on.
    pub exit: Option<Exit>,
    /// The error of the last failed attempt to kill the task. The next stop clears it.
    pub kill_error: Option<String>,
}

impl TaskView {
    /// A task of which only the phase is known.
    pub fn new(phase: Phase) -> Self {
        Self { phase, started_at: None, exit: None, kill_error: None }
    }
}

/// The end of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// Exit code; 128 + n when signal n ended the task.
    pub code: i32,
    /// The signal that ended the task, or 0.
    pub signal: i32,
    /// The kernel killed a process of the task because of its memory limit.
    pub oom_killed: bool,
    /// The time of the end.
    pub finished_at: SystemTime,
    /// The failure in words. Nomad takes any text for a failure, so a success has none.
    pub message: Option<String>,
    /// Task events about the end, independent of the exit code.
    pub remarks: Vec<Content>,
}
