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
        let Some(drain) = self.drain.take() else { return self.report_earlier(runtime) };
        match drain.stop(abandoned).await {
            Ok(count) => dropped::report(self.stream, count, &self.container, &self.events),
            Err(error) => tracing::warn!(container = %self.container, %error, "lost output was not counted"),
        }
    }

    /// Reports the bytes that another process dropped.
    pub fn report_earlier(&self, runtime: &Runtime) {
        dropped::report_earlier(self.stream, runtime, &self.container, &self.events);
    }
}
