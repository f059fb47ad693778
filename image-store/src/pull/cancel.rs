//! Cancellation and the total timeout of a pull.

use std::{
    future::{self, Future},
    time::Duration,
};

use crate::{
    error::PullError,
    reference::Reference,
    tracker::{TaskToken, TaskTracker},
};

/// Runs a pull until its total timeout, or until `cancelled` is ready. Then it waits until the work of the pull on
/// other threads has finished or was undone, and only then returns the error.
pub(crate) async fn until_cancelled<T, F: Future<Output = Result<T, PullError>>>(
    cancelled: impl Future<Output = ()>,
    (reference, limit): (&Reference, Option<Duration>),
    pull: impl FnOnce(TaskToken) -> F,
) -> Result<T, PullError> {
    let tracker = TaskTracker::new();
    let timeout = async {
        match limit {
            Some(limit) => tokio::time::sleep(limit).await,
            None => future::pending().await,
        }
        PullError::Timeout { reference: reference.to_string(), limit: limit.unwrap_or_default() }
    };
    // In a box, because it must be dropped before its end is waited for.
    let mut pull = Box::pin(pull(tracker.token()));
    let error = tokio::select! {
        biased;
        done = &mut pull => return done,
        () = cancelled => PullError::Cancelled,
        error = timeout => error,
    };
    drop(pull);
    tracker.wait().await;
    Err(error)
}
