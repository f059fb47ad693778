//! The causes of libcontainer's errors.
//!
//! An error that crosses libcontainer's processes keeps only its top-most text. The cause is in the ERROR events that
//! the failing process emits. They are collected in a memory file, which all forks of this process share, position
//! included.

use std::{
    fmt,
    fs::File,
    io::{self, Read, Seek, Write},
    sync::Arc,
};

use rustix::fs::{MemfdFlags, memfd_create};
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

use crate::error::StartError;

/// The collected events.
pub(super) struct Errors(Arc<File>);

/// Collects the ERROR events of this process and its forks from now on.
pub(super) fn capture() -> io::Result<Errors> {
    let file = Arc::new(File::from(memfd_create("errors", MemfdFlags::CLOEXEC)?));
    match tracing::subscriber::set_global_default(Collector(Arc::clone(&file))) {
        Ok(()) => Ok(Errors(file)),
        Err(error) => Err(io::Error::other(error)),
    }
}

impl Errors {
    /// An error with the first collected event, which is nearest to the cause.
    pub fn explain(&self, action: &str, error: &dyn fmt::Display) -> StartError {
        let mut text = String::new();
        let mut file = &*self.0;
        let read = file.rewind().and_then(|()| file.read_to_string(&mut text));
        let cause = read.ok().and_then(|_| text.lines().next().map(str::to_owned));
        StartError::internal(match cause {
            Some(cause) => format!("{action}: {cause} ({error})"),
            None => format!("{action}: {error}"),
        })
    }
}

struct Collector(Arc<File>);

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::ERROR
    }

    fn max_level_hint(&self) -> Option<tracing::level_filters::LevelFilter> {
        Some(tracing::level_filters::LevelFilter::ERROR)
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let text = format!("{}{}\n", line.message, line.fields).replace('\n', " ");
        // A lost event only loses the cause: the error itself is reported anyway.
        drop((&*self.0).write_all(format!("{}\n", text.trim_end()).as_bytes()));
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// One event as text: the message, then its fields.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message.push_str(&format!("{value:?}")),
            name => self.fields.push_str(&format!(", {name} {value:?}")),
        }
    }
}
