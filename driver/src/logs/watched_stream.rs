//! One watched stream of a task.

use std::{io, os::fd::OwnedFd};

use runtime::{Runtime, logs::OutputStream, plan::ContainerId};

use super::{drain::Drain, dropped};
use crate::events::TaskEvents;

/// A watched stream of a task.
pub struct WatchedStream {
    /// The task's container.
    pub container: ContainerId,
    /// Which stream of the task it is.
    pub stream: OutputStream,
    /// The sender of the task's events.
    pub events: TaskEvents,
    /// The FIFO, if it is held.
    pub drain: Option<Drain>,
}

impl WatchedStream {
    /// Holds the FIFO, ready to be drained.
    pub fn hold(&mut self, runtime: &Runtime, fifo: OwnedFd) -> io::Result<()> {
        let (events, container, stream) = (self.events.clone(), self.container.clone(), self.stream);
        let begins = move || dropped::report_beginning(stream, &container, &events);
        let count = runtime.dropped_bytes(&self.container, self.stream).map_err(io::Error::other)?;
        self.drain = Some(Drain::hold(fifo, count, begins)?);
        Ok(())
    }

    /// Closes the FIFO if it is held, and reports the number of dropped bytes. `abandoned`: the FIFO has no reader.
    pub async fn release(&mut self, runtime: &Runtime, abandoned: bool) {
        if let Some(drain) = self.drain.take()
            && let Err(error) = drain.stop(abandoned).await
        {
            dropped::not_counted(&self.container, &error);
        }
        self.report(runtime);
    }

    /// Reports the number of dropped bytes.
    pub fn report(&self, runtime: &Runtime) {
        dropped::report(self.stream, runtime, &self.container, &self.events);
    }
}
