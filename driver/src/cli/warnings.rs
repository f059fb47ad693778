//! Warnings of the crates below, such as one about a record that cannot be read, as lines on standard error.

use std::fmt::Debug;

use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    Layer,
    filter::LevelFilter,
    layer::{Context, SubscriberExt},
    util::SubscriberInitExt,
};

use super::output::note;

/// Shows warnings and errors from now on.
pub fn show() {
    // A second call in one process, in tests, has no effect.
    drop(tracing_subscriber::registry().with(Lines.with_filter(LevelFilter::WARN)).try_init());
}

struct Lines;

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() <= Level::WARN {
            let mut line = Line::default();
            event.record(&mut line);
            note(format_args!("{}{}", line.message, line.fields));
        }
    }
}

/// The text of an event, and its fields.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.message.push_str(&format!("{value:?}")),
            name => self.fields.push_str(&format!(", {name}: {value:?}")),
        }
    }
}
