//! The largest layer of a pull leads: it sends its request before the other layers begin.
//!
//! One connection to the registry is open from the requests before, and the others must be made first. The largest
//! layer gets the open one, so that the link has something to do meanwhile. It leads no more as soon as it waits for
//! anything else, such as another pull, so no layer waits for what a third one holds.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};

use tokio::sync::watch;

/// The layer with this value leads until the value is dropped.
pub(super) struct Lead {
    _end: watch::Sender<()>,
}

/// What the other layers have.
#[derive(Clone)]
pub(super) struct Followers(watch::Receiver<()>);

/// One layer leads the others.
pub(super) fn lead() -> (Lead, Followers) {
    let (end, followers) = watch::channel(());
    (Lead { _end: end }, Followers(followers))
}

impl Followers {
    /// Waits until the other layer leads no more.
    pub(super) async fn begin(mut self) {
        // Nothing is ever sent: the end of the sender is the message.
        self.0.changed().await.ok();
    }
}

/// Awaits a future. If it is not ready at once, the layer leads no more.
pub(super) async fn passing_on<T>(lead: &mut Option<Lead>, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    match poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await {
        Poll::Ready(value) => value,
        Poll::Pending => {
            drop(lead.take());
            future.await
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::{pending, ready},
        time::Duration,
    };

    use super::*;

    /// Whether a future is ready now.
    async fn is_ready(future: impl Future) -> bool {
        tokio::time::timeout(Duration::ZERO, future).await.is_ok()
    }

    #[tokio::test]
    async fn the_others_begin_when_the_leader_waits_for_something_else() {
        let (leader, followers) = lead();
        let mut leader = Some(leader);
        assert_eq!(passing_on(&mut leader, ready(1)).await, 1);
        assert!(leader.is_some() && !is_ready(followers.clone().begin()).await);
        assert!(!is_ready(passing_on(&mut leader, pending::<()>())).await);
        assert!(leader.is_none() && is_ready(followers.clone().begin()).await);
        assert!(is_ready(followers.begin()).await);
    }

    #[tokio::test]
    async fn the_others_begin_when_the_leader_ends() {
        let (leader, followers) = lead();
        let begins = tokio::spawn(followers.begin());
        tokio::task::yield_now().await;
        assert!(!begins.is_finished());
        drop(leader);
        begins.await.unwrap();
    }
}
