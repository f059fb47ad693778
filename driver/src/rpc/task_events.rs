//! The stream of task events.
//!
//! The stream stays open for as long as the plugin lives: when it ends, the agent opens it again without a pause.

use std::pin::Pin;

use proto::driver::DriverTaskEvent;
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};
use tonic::Status;

use super::convert;
use crate::events::Events;

/// The answers to TaskEvents.
pub type TaskEventStream = Pin<Box<dyn Stream<Item = Result<DriverTaskEvent, Status>> + Send>>;

/// The waiting task events, and all events from now on.
pub fn stream(events: &Events) -> TaskEventStream {
    Box::pin(ReceiverStream::new(events.subscribe()).map(|event| Ok(convert::event(event))))
}
