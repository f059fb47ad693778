//! Counting what could not be delivered.

use std::{
    fs, io,
    sync::{Mutex, PoisonError},
};

use log_drivers::Destination;

use crate::{logs::DroppedBytes, state::TaskDir};

/// The count of messages that were not delivered, and the reason of the last one, in files of the task's directory. The
/// plugin reports them.
#[derive(Debug)]
pub(super) struct Undelivered {
    task: TaskDir,
    destination: String,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    count: DroppedBytes,
    /// The last reason that was written.
    reason: String,
    /// The part of the count that was in the queue after the end of the container.
    left: u64,
}

impl Undelivered {
    /// Counts for the container of this directory.
    pub fn new(task: &TaskDir, destination: &Destination) -> io::Result<Self> {
        let count = DroppedBytes::open(&task.undelivered())?;
        let state = State { count, reason: String::new(), left: 0 };
        Ok(Self { task: task.clone(), destination: destination.to_string(), state: Mutex::new(state) })
    }

    /// Counts messages. A count that cannot be written is not reported: that must not stop the delivery of others.
    pub fn count(&self, messages: u64, reason: &str) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.explain(&mut state, reason);
        drop(state.count.add(messages));
    }

    /// Counts the messages that are in the queue after the end of the container, in place of those that were counted by
    /// the call before.
    pub fn set_left(&self, messages: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut state.left, messages);
        if messages > before {
            self.explain(&mut state, "they were not taken in time after the end of the task");
            drop(state.count.add(messages - before));
        } else if messages < before {
            drop(state.count.subtract(before - messages));
        }
    }

    /// Writes the reason, before the count.
    fn explain(&self, state: &mut State, reason: &str) {
        if state.reason == reason {
            return;
        }
        reason.clone_into(&mut state.reason);
        let path = self.task.undelivered_reason();
        let temporary = path.with_extension("reason.tmp");
        let written = fs::write(&temporary, format!("{}: {reason}", self.destination));
        drop(written.and_then(|()| fs::rename(&temporary, &path)));
    }
}
