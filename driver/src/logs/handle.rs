//! The way to the watcher of log FIFOs, which starts with the first task.

use std::sync::OnceLock;

use runtime::{Runtime, plan::ContainerId};
use tokio::sync::{mpsc, oneshot};

use super::watcher::{Message, Watcher};
use crate::events::TaskEvents;

/// The watch over the log FIFOs of all tasks.
pub struct Logs {
    runtime: Runtime,
    watcher: OnceLock<Option<mpsc::UnboundedSender<Message>>>,
}

/// The watch over the streams of one task. It ends when this value is dropped.
pub struct LogWatch {
    container: ContainerId,
    watcher: mpsc::UnboundedSender<Message>,
    /// Answered when the watching has ended.
    done: Option<oneshot::Sender<()>>,
}

impl Logs {
    /// Starts nothing.
    pub fn new(runtime: Runtime) -> Self {
        Self { runtime, watcher: OnceLock::new() }
    }

    /// Watches the streams of a running container; `None` when that is impossible here, which the log says once. Must
    /// be called on a thread of the async runtime.
    pub fn watch(&self, container: &ContainerId, events: TaskEvents) -> Option<LogWatch> {
        let watcher = self.watcher.get_or_init(|| match Watcher::start(self.runtime.clone()) {
            Ok(watcher) => Some(watcher),
            Err(error) => {
                tracing::warn!(
                    %error,
                    "a task whose log collector dies will block when its log FIFO is full: no inotify instance \
                     (raise fs.inotify.max_user_instances)"
                );
                None
            }
        });
        let watcher = watcher.clone()?;
        let message = Message::Watch { container: container.clone(), events };
        watcher.send(message).is_ok().then(|| LogWatch { container: container.clone(), watcher, done: None })
    }
}

impl LogWatch {
    /// Ends the watching. The result is ready when no file of the container's directory is open any more.
    pub fn release(mut self) -> oneshot::Receiver<()> {
        let (done, is_done) = oneshot::channel();
        self.done = Some(done);
        is_done
    }
}

impl Drop for LogWatch {
    fn drop(&mut self) {
        // Sending fails if the watcher has ended: then it watches nothing.
        drop(self.watcher.send(Message::Ended { container: self.container.clone(), done: self.done.take() }));
    }
}
