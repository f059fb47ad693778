//! Tasks: what the driver does between Nomad's calls and the runtime.
//!
//! One async task (the *owner*) owns one Nomad task and serialises everything that happens to it. A call claims the task's id
//! atomically or finds its owner, then only sends to it and watches what it publishes. What may happen is decided in
//! [`lifecycle`], a pure function; the owner carries it out.

mod alive;
mod error;
pub mod exec;
mod handle;
mod hits;
mod lifecycle;
mod load;
mod owner;
mod profile;
mod progress;
mod registry;
mod start;
pub mod stats;

use std::time::SystemTime;

pub use error::TaskError;
pub use handle::{DriverNetwork, DriverState};
pub use lifecycle::{Event, Phase, Refusal};
pub use registry::{Facts, TaskRef, Tasks};
pub use start::blocking;

/// What the owner publishes of its task.
#[derive(Debug, Clone)]
pub struct TaskView {
    /// Where it stands.
    pub phase: Phase,
    /// When its command was executed.
    pub started_at: Option<SystemTime>,
    /// How it ended; present from [`Phase::Exited`] on.
    pub exit: Option<Exit>,
    /// Why the last attempt to kill it failed; gone with the next one.
    pub unkillable: Option<String>,
}

impl TaskView {
    /// Nothing but the phase is known.
    pub fn new(phase: Phase) -> Self {
        Self { phase, started_at: None, exit: None, unkillable: None }
    }
}

/// How a task ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// Exit code; 128 + n when signal n ended it.
    pub code: i32,
    /// The signal that ended it, or 0.
    pub signal: i32,
    /// The kernel killed a process of it for want of memory.
    pub oom_killed: bool,
    /// When.
    pub finished_at: SystemTime,
    /// Something to add in words. Nomad takes any text for a failure, so a success has none.
    pub message: Option<String>,
    /// What is worth a task event, whatever the exit code is.
    pub remarks: Vec<String>,
}
