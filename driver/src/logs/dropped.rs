//! Reporting dropped output: a task event and a log line.

use std::io;

use runtime::{Runtime, logs::OutputStream, plan::ContainerId};

use crate::events::TaskEvents;

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
    events.emit(format!("The task's log has no reader: {stream} is dropped until Nomad's log collector is back"), []);
}

/// Reports the number of dropped bytes, if there are any.
pub fn report(stream: OutputStream, dropped: u64, container: &ContainerId, events: &TaskEvents) {
    if dropped == 0 {
        return;
    }
    let (name, stream) = (stream.name(), description(stream));
    tracing::warn!(%container, stream, lost = dropped, "output was lost because the log had no reader");
    let text = format!("{dropped} bytes of {stream} were lost because the task's log had no reader");
    events.emit(text, [("stream", name.to_owned()), ("lost_bytes", dropped.to_string())]);
}

/// Reports the number of bytes that another process dropped (an earlier plugin, or the monitor) and that was not
/// reported yet.
pub fn report_earlier(stream: OutputStream, runtime: &Runtime, container: &ContainerId, events: &TaskEvents) {
    let taken = || match runtime.dropped_so_far(container, stream).map_err(io::Error::other)? {
        0 => Ok(0),
        _ => runtime.dropped_bytes(container, stream).map_err(io::Error::other)?.take(),
    };
    match taken() {
        Ok(dropped) => report(stream, dropped, container, events),
        Err(error) => tracing::warn!(%container, %error, "lost output was not counted"),
    }
}

/// Reports how much output of an ended container was dropped while no plugin ran.
pub fn report_dropped(runtime: &Runtime, container: &ContainerId, events: &TaskEvents) {
    for stream in OutputStream::ALL {
        report_earlier(stream, runtime, container, events);
    }
}
