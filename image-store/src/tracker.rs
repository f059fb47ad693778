//! Waiting for the end of work on other threads.
//!
//! A [`TaskTracker`] hands out [`TaskToken`]s. Each part of the work keeps a token until it has finished or was undone.

use tokio::sync::mpsc;

/// Kept by one part of the work that a tracker waits for. Clones count as parts of their own.
#[derive(Debug, Clone)]
pub(crate) struct TaskToken {
    _sender: mpsc::Sender<()>,
    /// The token of the work that this is a part of.
    _parent: Option<Box<TaskToken>>,
}

/// Waits until all its tokens are dropped: staged layers are committed or removed, leases are restored.
#[derive(Debug)]
pub(crate) struct TaskTracker {
    token: TaskToken,
    dropped: mpsc::Receiver<()>,
}

impl TaskTracker {
    pub(crate) fn new() -> Self {
        Self::with_parent(None)
    }

    /// A tracker of a part of other work. The other work is not finished before this part is.
    pub(crate) fn within(parent: &TaskToken) -> Self {
        Self::with_parent(Some(Box::new(parent.clone())))
    }

    fn with_parent(parent: Option<Box<TaskToken>>) -> Self {
        let (sender, dropped) = mpsc::channel(1);
        Self { token: TaskToken { _sender: sender, _parent: parent }, dropped }
    }

    pub(crate) fn token(&self) -> TaskToken {
        self.token.clone()
    }

    /// Waits until no token is left. The tasks that take new tokens must have ended.
    pub(crate) async fn wait(self) {
        let Self { token, mut dropped } = self;
        drop(token);
        // No message is ever sent: receiving ends when the last sender is dropped.
        while dropped.recv().await.is_some() {}
    }
}
