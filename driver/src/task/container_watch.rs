//! The background work about a running container: its end, its logs, its terminal, its limits.
//!
//! Dropping the watch aborts all of it. The container is not affected.

use std::{path::Path, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use tokio::{sync::oneshot, task::JoinHandle};

use super::{Exit, cgroup_events, running::RunningContainer};
use crate::{
    events::TaskEvents,
    log_directory::LinkWatch,
    logs::{self, LogWatch},
    node::Node,
};

/// The background work about one running container.
pub struct ContainerWatch {
    container: Arc<RunningContainer>,
    /// The end of the container; `None` after it was taken.
    end: Option<BoxFuture<'static, Exit>>,
    logs: Option<LogWatch>,
    links: Option<LinkWatch>,
    /// Completes when the log watch has closed its files in the container's directory.
    logs_released: Option<oneshot::Receiver<()>>,
    cgroup_events: Option<AbortOnDrop>,
    /// Ends with the container by itself.
    terminal: Option<AbortOnDrop>,
}

impl ContainerWatch {
    /// Starts the work.
    pub fn start(node: &Arc<Node>, container: RunningContainer, alloc_dir: &Path, events: &TaskEvents) -> Self {
        let container = Arc::new(container);
        let id = container.id();
        let terminal = logs::terminal::keep(node.runtime.clone(), id.clone(), container.clone(), events.clone());
        let (copied, terminal_copied) = oneshot::channel();
        let terminal = async move {
            terminal.await;
            // The receiver is gone if the container's end has been reported.
            copied.send(()).ok();
        };
        let cgroup_events = cgroup_events::watch(node.clone(), id.clone(), events.clone());
        Self {
            logs: node.logs.watch(id, events.clone()),
            links: node.log_links.watch(alloc_dir.to_owned()),
            logs_released: None,
            cgroup_events: Some(AbortOnDrop::spawn(cgroup_events)),
            terminal: Some(AbortOnDrop::spawn(terminal)),
            end: Some(Box::pin(container.clone().end(node.clone(), terminal_copied))),
            container,
        }
    }

    /// The watched container.
    pub fn container(&self) -> &Arc<RunningContainer> {
        &self.container
    }

    /// Waits for the container's end. Returns it once, and never again.
    pub async fn ended(&mut self) -> Exit {
        let Some(end) = &mut self.end else { return std::future::pending().await };
        let exit = end.await;
        self.end = None;
        exit
    }

    /// The container's end, if it was not taken before and comes within `patience`.
    pub async fn take_end(&mut self, patience: Duration) -> Option<Exit> {
        tokio::time::timeout(patience, self.end.take()?).await.ok()
    }

    /// Ends the work that is useless after the container's end. The terminal's output is still copied to the log.
    pub fn stop_after_end(&mut self) {
        self.release_logs();
        self.cgroup_events = None;
    }

    /// Ends all work, and waits until no file in the container's directory is in use.
    pub async fn release(&mut self) {
        (self.cgroup_events, self.terminal) = (None, None);
        self.release_logs();
        if let Some(released) = self.logs_released.take() {
            // An error means that the log watch is gone, together with its files.
            drop(released.await);
        }
    }

    fn release_logs(&mut self) {
        self.links = None;
        if let Some(logs) = self.logs.take() {
            self.logs_released = Some(logs.release());
        }
    }
}

/// An async task that is aborted when this value is dropped.
struct AbortOnDrop(JoinHandle<()>);

impl AbortOnDrop {
    fn spawn(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(work))
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
