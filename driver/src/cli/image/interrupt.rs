//! Work of the image store that an operator may interrupt.

use std::future;

use futures_util::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use image_store::PullError;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::failure::Failure;

/// Becomes ready at SIGINT or SIGTERM, in all clones.
pub type Interrupted = Shared<BoxFuture<'static, ()>>;

/// Becomes ready at SIGINT or SIGTERM after the first poll.
pub fn interrupted() -> Interrupted {
    let either = async {
        match [SignalKind::interrupt(), SignalKind::terminate()].map(signal) {
            [Ok(mut interrupt), Ok(mut terminate)] => {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
            }
            // Without a handler, the signal ends the process.
            _ => future::pending().await,
        }
    };
    either.boxed().shared()
}

/// Runs work to its end. A pull ends at [`interrupted`] itself, because only the store knows when its threads have
/// removed what they staged.
pub fn run<T>(work: impl Future<Output = Result<T, PullError>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Failure::of)?;
    let result = runtime.block_on(work).map_err(|error| match error {
        PullError::Cancelled => Failure::Failed("given up".to_owned()),
        error => Failure::of(error),
    });
    // Waits for threads that still work on files.
    drop(runtime);
    result
}

/// Runs work that uses no image store to its end, or until SIGINT or SIGTERM. When this returns, no part of it runs any
/// more.
pub fn until_interrupted<T>(work: impl Future<Output = Result<T, PullError>>) -> Result<T, Failure> {
    run(async {
        tokio::select! {
            result = work => result,
            () = interrupted() => Err(PullError::Cancelled),
        }
    })
}
