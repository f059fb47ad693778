//! Work of the image store that an operator may interrupt.

use image_store::PullError;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::failure::Failure;

/// Runs work to its end, or until SIGINT or SIGTERM. When this returns, no part of it runs any more.
pub fn until_interrupted<T>(work: impl Future<Output = Result<T, PullError>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Failure::of)?;
    let interrupted = || Err(Failure::Failed("given up".to_owned()));
    let result = runtime.block_on(async {
        let mut terminated = signal(SignalKind::terminate()).map_err(Failure::of)?;
        tokio::select! {
            result = work => result.map_err(Failure::of),
            _ = tokio::signal::ctrl_c() => interrupted(),
            _ = terminated.recv() => interrupted(),
        }
    });
    // Waits for threads that still work on files.
    drop(runtime);
    result
}
