//! The stream of task events.
//!
//! The stream stays open for as long as the plugin lives: when it ends, the agent opens it again without a pause.

use std::pin::Pin;

use proto::driver::DriverTaskEvent;
use tokio::sync::{broadcast::error::RecvError, mpsc};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::Status;

use super::convert;
use crate::events;

/// The answers to TaskEvents.
pub type TaskEventStream = Pin<Box<dyn Stream<Item = Result<DriverTaskEvent, Status>> + Send>>;

/// All task events from now on.
pub fn stream(events: &events::Events) -> TaskEventStream {
    let mut subscription = events.subscribe();
    let (sender, receiver) = mpsc::channel(16);
    tokio::spawn(async move {
        loop {
            let event = tokio::select! {
                event = subscription.recv() => event,
                () = sender.closed() => return,
            };
            match event {
                Ok(event) => {
                    if sender.send(Ok(convert::event(event))).await.is_err() {
                        return;
                    }
                }
                Err(RecvError::Lagged(lost)) => tracing::warn!(lost, "task events lost: the agent reads too slowly"),
                Err(RecvError::Closed) => return,
            }
        }
    });
    Box::pin(ReceiverStream::new(receiver))
}
