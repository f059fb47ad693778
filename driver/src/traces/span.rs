//! Spans: what took how long, with attributes.

use std::{
    fs,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// A name and a value that describe a span.
pub type Attribute = (&'static str, String);

/// One step of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// The name.
    pub name: &'static str,
    /// The index of the step that this one is a part of. The first span of a trace has none.
    pub parent: Option<usize>,
    /// When it began.
    pub began: SystemTime,
    /// How long it took.
    pub elapsed: Duration,
    /// Its attributes.
    pub attributes: Vec<Attribute>,
    /// The failure that ended it.
    pub error: Option<String>,
}

impl Span {
    /// A span without parts that ends now.
    pub fn ended(name: &'static str, elapsed: Duration, attributes: Vec<Attribute>, error: Option<String>) -> Self {
        let began = SystemTime::now().checked_sub(elapsed).unwrap_or(UNIX_EPOCH);
        Self { name, parent: None, began, elapsed, attributes, error }
    }
}

/// One trace: its spans, the whole first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// The id, which is not zero.
    pub id: u128,
    /// The spans. A parent comes before its parts.
    pub spans: Vec<Span>,
}

impl Trace {
    /// A trace with a new id. `None` if the kernel gives no random number.
    pub fn new(spans: Vec<Span>) -> Option<Self> {
        let uuid = fs::read_to_string("/proc/sys/kernel/random/uuid").ok()?;
        let id = u128::from_str_radix(&uuid.trim().replace('-', ""), 16).ok().filter(|id| *id != 0)?;
        Some(Self { id, spans })
    }

    /// The id of a span, which is unique in its trace, and not zero.
    pub fn span_id(&self, index: usize) -> u64 {
        let random = self.id as u64 ^ (self.id >> 64) as u64;
        // The low bits count, the others are those of the trace.
        (random & !0xffff) | (index as u64 + 1)
    }
}

/// Nanoseconds since 1970.
pub fn unix_nanos(at: SystemTime) -> u128 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_random_and_spans_differ() {
        let (one, other) = (Trace::new(Vec::new()).unwrap(), Trace::new(Vec::new()).unwrap());
        assert_ne!(one.id, other.id);
        assert!(one.span_id(0) != 0 && one.span_id(0) != one.span_id(1) && one.span_id(0) != other.span_id(0));
    }
}
