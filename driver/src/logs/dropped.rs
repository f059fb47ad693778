//! Reporting dropped output: a task event and a log line.

use std::{
    io,
    sync::atomic::{AtomicU64, Ordering},
};

use runtime::{Runtime, Undelivered, logs::OutputStream, plan::ContainerId};

use crate::events::{Content, TaskEvents};

/// The lost bytes that this process has reported: standard output, standard error.
static LOST_BYTES: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
/// The undelivered lines that this process has reported.
static UNDELIVERED_LINES: AtomicU64 = AtomicU64::new(0);

/// The lost bytes that this process has reported: standard output, standard error.
pub fn lost_bytes() -> [u64; 2] {
    [0, 1].map(|stream: usize| LOST_BYTES[stream].load(Ordering::Relaxed))
}

/// The lines without a log server that this process has reported.
pub fn undelivered_lines() -> u64 {
    UNDELIVERED_LINES.load(Ordering::Relaxed)
}

/// The stream's name for users.
fn description(stream: OutputStream) -> &'static str {
    match stream {
        OutputStream::Stdout => "standard output",
        OutputStream::Stderr => "standard error",
    }
}

/// Reports that output is being dropped from now on.
pub fn report_beginning(stream: OutputStream, container: &ContainerId, events: &TaskEvents) {
    let stream = description(stream);
    tracing::warn!(%container, stream, "the task's log has no reader, its output is being dropped");
    events.emit(Content::LogUnread { output: stream.to_owned() });
}

/// Reports the number of dropped bytes that was not reported yet, if there are any. The number is in a file of the
/// container, and it is taken from there when an agent receives the event: if this process ends before, the next one
/// reports it.
pub fn report(stream: OutputStream, runtime: &Runtime, container: &ContainerId, events: &TaskEvents) {
    match runtime.dropped_so_far(container, stream) {
        Ok(0) => return,
        Ok(_) => {}
        Err(error) => return not_counted(container, &error),
    }
    let (runtime, container) = (runtime.clone(), container.clone());
    events.emit_at_delivery(move || {
        let taken = || runtime.dropped_bytes(&container, stream).map_err(io::Error::other)?.take();
        match taken() {
            // Another event has reported it.
            Ok(0) => None,
            Ok(dropped) => Some(content(stream, dropped, &container)),
            Err(error) => {
                not_counted(&container, &error);
                None
            }
        }
    });
}

fn content(stream: OutputStream, dropped: u64, container: &ContainerId) -> Content {
    let counter = if stream == OutputStream::Stdout { &LOST_BYTES[0] } else { &LOST_BYTES[1] };
    counter.fetch_add(dropped, Ordering::Relaxed);
    let (name, stream) = (stream.name(), description(stream));
    tracing::warn!(%container, stream, lost = dropped, "output was lost because the log had no reader");
    Content::OutputLost { output: stream.to_owned(), stream: name.to_owned(), lost_bytes: dropped.to_string() }
}

/// Logs that the dropped bytes of a container cannot be counted.
pub fn not_counted(container: &ContainerId, error: &impl std::fmt::Display) {
    tracing::warn!(%container, %error, "lost output was not counted");
}

/// Reports how much output of an ended container was dropped while no plugin ran.
pub fn report_dropped(runtime: &Runtime, container: &ContainerId, events: &TaskEvents) {
    for stream in OutputStream::ALL {
        report(stream, runtime, container, events);
    }
    report_undelivered(runtime, container, events);
}

/// Reports the messages that the container's log relay could not deliver and that were not reported yet, if there are
/// any.
pub fn report_undelivered(runtime: &Runtime, container: &ContainerId, events: &TaskEvents) {
    let (runtime, container) = (runtime.clone(), container.clone());
    events.emit_at_delivery(move || match runtime.take_undelivered(&container) {
        Ok(undelivered) => undelivered.map(|undelivered| undelivered_content(&undelivered, &container)),
        Err(error) => {
            tracing::warn!(%container, %error, "undelivered output was not counted");
            None
        }
    });
}

fn undelivered_content(undelivered: &Undelivered, container: &ContainerId) -> Content {
    let Undelivered { messages, relays, reason } = undelivered;
    UNDELIVERED_LINES.fetch_add(*messages, Ordering::Relaxed);
    tracing::warn!(%container, messages, relays, reason, "output was not delivered to the log server");
    let (undelivered_lines, reason) = (messages.to_string(), reason.clone());
    match (messages, relays) {
        (_, 0) => Content::OutputUndelivered { reason, undelivered_lines },
        (0, _) => Content::RelayKilled { undelivered_lines },
        _ => Content::OutputUndeliveredRelayKilled { reason, undelivered_lines },
    }
}
