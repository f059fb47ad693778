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
    /// The number, and the last reason that was written.
    state: Mutex<(DroppedBytes, String)>,
}

impl Undelivered {
    /// Counts for the container of this directory.
    pub fn new(task: &TaskDir, destination: &Destination) -> io::Result<Self> {
        let count = DroppedBytes::open(&task.undelivered())?;
        Ok(Self { task: task.clone(), destination: destination.to_string(), state: Mutex::new((count, String::new())) })
    }

    /// Counts messages. A count that cannot be written is not reported: that must not stop the delivery of others.
    pub fn count(&self, messages: u64, reason: &str) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, last) = &mut *state;
        drop(count.add(messages));
        if last != reason {
            reason.clone_into(last);
            drop(fs::write(self.task.undelivered_reason(), format!("{}: {reason}", self.destination)));
        }
    }
}
