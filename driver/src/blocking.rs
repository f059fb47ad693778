//! Runs blocking work beside the threads of the async runtime.

use crate::error::TaskError;

/// Runs `work` on a thread that may block. The work runs to its end even when the caller is dropped.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, TaskError> + Send + 'static,
) -> Result<T, TaskError> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(TaskError::Internal(format!("a worker thread ended early: {error}"))))
}
