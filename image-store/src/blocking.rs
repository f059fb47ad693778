//! File work on the threads that may block.

use std::io;

use crate::error::{PullError, StoreError};

/// Runs file work on a thread that may block. A panic of the work continues in the caller.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(interrupted()),
    }
}

/// As [`blocking`], for work that fails with a [`PullError`].
pub(crate) async fn blocking_pull<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PullError> + Send + 'static,
) -> Result<T, PullError> {
    blocking(move || Ok(work())).await?
}

/// The error of file work that was cancelled, or that belongs to a cancelled pull.
pub(crate) fn interrupted() -> StoreError {
    StoreError::io("waiting for", "the pull")(io::Error::from(io::ErrorKind::Interrupted))
}
