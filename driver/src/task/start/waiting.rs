//! An event about a phase of a start that takes long.

use std::time::Duration;

use crate::events::{Content, TaskEvents};

/// The time until the event.
const PATIENCE: Duration = Duration::from_secs(2);

/// Does the work. If it takes long, an event says what the start waits for.
pub async fn announced<T>(events: &TaskEvents, content: impl FnOnce() -> Content, work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    tokio::select! {
        done = &mut work => return done,
        () = tokio::time::sleep(PATIENCE) => {}
    }
    events.emit(content());
    work.await
}
