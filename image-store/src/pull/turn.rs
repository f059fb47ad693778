//! The order in which the layers of a pull send their requests: the largest first.
//!
//! One connection to the registry is open from the requests before, and the others must be made first. The largest
//! layer gets the open one, so that the link has something to do meanwhile. A layer that waits for anything else, such
//! as another pull, passes its turn on, so no layer waits for what a third one holds.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};

use tokio::sync::oneshot;

/// The turn of one layer. It passes on when it is dropped.
pub(super) struct Turn {
    /// Ends when the turn of the layer before has passed on.
    before: Option<oneshot::Receiver<()>>,
    /// `None`: this is the last one.
    _passes_on: Option<oneshot::Sender<()>>,
}

impl Turn {
    /// So many turns, one after the other.
    pub(super) fn in_order(count: usize) -> Vec<Self> {
        let mut turns = Vec::with_capacity(count);
        let mut before = None;
        for number in 1..=count {
            let (sender, receiver) = oneshot::channel();
            let last = number == count;
            turns.push(Self { before, _passes_on: (!last).then_some(sender) });
            before = Some(receiver);
        }
        turns
    }

    /// Waits until the turns before have passed on.
    pub(super) async fn begin(&mut self) {
        if let Some(before) = self.before.take() {
            // Nothing is ever sent: the end of the sender is the message.
            before.await.ok();
        }
    }
}

/// Awaits a future. If it is not ready at once, the turn passes on meanwhile.
pub(super) async fn passing_on<T>(turn: &mut Option<Turn>, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    match poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await {
        Poll::Ready(value) => value,
        Poll::Pending => {
            drop(turn.take());
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

    /// Whether it is this turn's time.
    async fn comes(turn: &mut Turn) -> bool {
        tokio::time::timeout(Duration::ZERO, turn.begin()).await.is_ok()
    }

    #[tokio::test]
    async fn each_turn_begins_when_the_one_before_has_passed_on() {
        let [first, second, third] = <[Turn; 3]>::try_from(Turn::in_order(3)).ok().unwrap();
        let (mut first, mut second, mut third) = (Some(first), Some(second), third);
        assert!(comes(first.as_mut().unwrap()).await);
        assert_eq!(passing_on(&mut first, ready(1)).await, 1);
        assert!(first.is_some(), "a future that is ready keeps the turn");
        let never = passing_on(&mut second, pending::<()>());
        assert!(tokio::time::timeout(Duration::ZERO, never).await.is_err());
        assert!(second.is_none() && comes(&mut third).await, "a layer that waits does not hold up the next one");
        assert!(first.is_some());
        assert!(Turn::in_order(0).is_empty());
    }

    #[tokio::test]
    async fn a_turn_that_is_dropped_passes_on() {
        let mut turns = Turn::in_order(2);
        let mut second = turns.pop().unwrap();
        let begins = tokio::spawn(async move { second.begin().await });
        tokio::task::yield_now().await;
        assert!(!begins.is_finished());
        drop(turns);
        begins.await.unwrap();
    }
}
