//! OpenTelemetry traces of starts and pulls, if the configuration names a collector.
//!
//! A trace is complete when it is made: it is put into a bounded queue, and a background task sends it. A start never
//! waits for the collector. What does not fit into the queue, or cannot be delivered, is dropped and counted.
//!
//! | module | contents |
//! |---|---|
//! | `span` | spans and their attributes |
//! | `otlp` | their encoding: OTLP over HTTP with JSON |
//! | `deliver` | the queue, and the requests to the collector |

mod deliver;
mod otlp;
mod span;

pub use self::{
    deliver::{Tracer, deliver},
    span::{Attribute, Span, Trace},
};
