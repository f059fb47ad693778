//! Giving up with words: what a test cannot go on without.

use std::{
    fmt::Display,
    future::{Future, poll_fn},
    task::Poll,
    time::Duration,
};

/// Takes the value out, or ends the test with a text that says what was wanted.
pub trait Must<T> {
    /// The value; panics with `what` and the reason.
    #[track_caller]
    fn must(self, what: &str) -> T;
}

impl<T, E: Display> Must<T> for Result<T, E> {
    #[track_caller]
    fn must(self, what: &str) -> T {
        match self {
            Ok(value) => value,
            Err(error) => panic!("{what}: {error}"),
        }
    }
}

impl<T> Must<T> for Option<T> {
    #[track_caller]
    fn must(self, what: &str) -> T {
        match self {
            Some(value) => value,
            None => panic!("{what}: there is none"),
        }
    }
}

/// A time limit of a test as it holds here: `OCI_RS_PATIENCE` says how many times longer everything may take on this machine
/// than on a usual one, because it is an emulated one (`scripts/test-v2.sh`).
pub fn patient(limit: Duration) -> Duration {
    let factor = std::env::var("OCI_RS_PATIENCE").map_or(1, |text| text.parse().must("OCI_RS_PATIENCE"));
    limit.saturating_mul(factor)
}

/// The future's value, or the end of the test when it takes longer than `limit`.
pub async fn within<F: Future>(limit: Duration, what: &str, future: F) -> F::Output {
    let limit = patient(limit);
    match tokio::time::timeout(limit, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: nothing within {limit:?}"),
    }
}

/// Runs all futures to their end, side by side.
pub async fn all<F: Future<Output = ()>>(futures: impl IntoIterator<Item = F>) {
    let mut running: Vec<_> = futures.into_iter().map(Box::pin).collect();
    poll_fn(|context| {
        running.retain_mut(|future| future.as_mut().poll(context).is_pending());
        if running.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Seconds, shortly.
pub const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// Waits for something outside our reach to become true (another process's end, a file), looking every few milliseconds.
///
/// Only for what the kernel cannot tell a stranger; returns false when `limit` has passed.
pub async fn eventually(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = tokio::time::Instant::now() + patient(limit);
    loop {
        if condition() {
            return true;
        }
        if tokio::time::Instant::now() > deadline {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
