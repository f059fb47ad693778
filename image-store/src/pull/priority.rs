//! The order of downloads in this process: layers that a task waits for, then the others.

use tokio::sync::{Semaphore, SemaphorePermit, watch};

/// Layers of background pulls that are fetched at the same time.
const BACKGROUND_LAYERS: usize = 2;

/// Lets background pulls make way.
pub(super) struct Priority {
    /// The number of downloads that a task waits for.
    urgent: watch::Sender<usize>,
    background: Semaphore,
}

impl Default for Priority {
    fn default() -> Self {
        Self { urgent: watch::Sender::new(0), background: Semaphore::new(BACKGROUND_LAYERS) }
    }
}

/// A download that a task waits for, until this is dropped.
pub(super) struct Urgent<'a>(&'a Priority);

impl Priority {
    /// From now on, no further layer of a background pull begins.
    pub(super) fn urgent(&self) -> Urgent<'_> {
        self.urgent.send_modify(|number| *number += 1);
        Urgent(self)
    }

    /// Waits until a layer of a background pull may begin. A layer that has begun goes on: a task may wait for it by
    /// now. So the caller takes the layer's lock only afterwards.
    pub(super) async fn background(&self) -> Option<SemaphorePermit<'_>> {
        // Neither the semaphore nor the channel is ever closed.
        let permit = self.background.acquire().await.ok();
        drop(self.urgent.subscribe().wait_for(|number| *number == 0).await);
        permit
    }
}

impl Drop for Urgent<'_> {
    fn drop(&mut self) {
        self.0.urgent.send_modify(|number| *number -= 1);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A turn that can begin now.
    async fn turn(priority: &Priority) -> Option<SemaphorePermit<'_>> {
        tokio::time::timeout(Duration::ZERO, priority.background()).await.ok().flatten()
    }

    #[tokio::test]
    async fn background_layers_wait_for_urgent_ones_and_for_each_other() {
        let priority = Priority::default();
        let (first, second) = (priority.urgent(), priority.urgent());
        assert!(turn(&priority).await.is_none());
        drop(first);
        assert!(turn(&priority).await.is_none(), "another one is urgent");
        drop(second);
        let running = [turn(&priority).await, turn(&priority).await];
        assert_eq!(running.len(), BACKGROUND_LAYERS);
        assert!(running.iter().all(Option::is_some) && turn(&priority).await.is_none());
        drop(running);
        assert!(turn(&priority).await.is_some());
    }
}
