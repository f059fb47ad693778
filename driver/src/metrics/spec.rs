//! The description of one metric. The text of a scrape and `docs/metrics.md` follow from it.

use prometheus_client::{
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet},
    metrics::MetricType,
};

/// One metric.
#[derive(Debug, Clone, Copy)]
pub struct MetricSpec {
    /// The name. The samples of a counter have the suffix `_total`.
    pub name: &'static str,
    /// The kind.
    pub kind: Kind,
    /// The labels, besides those of the task.
    pub labels: &'static [&'static str],
    /// The meaning, in one line without a full stop.
    pub help: &'static str,
}

/// The kinds of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Never falls while its source exists.
    Counter,
    /// Rises and falls.
    Gauge,
    /// Counts values by their size.
    Histogram,
}

/// A value of a counter or a gauge.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value {
    /// A whole number.
    Int(u64),
    /// A fraction.
    Float(f64),
}

/// Nanoseconds as seconds.
pub fn seconds(nanoseconds: u64) -> Value {
    Value::Float(nanoseconds as f64 / 1e9)
}

impl MetricSpec {
    /// A counter.
    pub const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, kind: Kind::Counter, labels, help }
    }

    /// A gauge.
    pub const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, kind: Kind::Gauge, labels, help }
    }

    /// A histogram.
    pub const fn histogram(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, kind: Kind::Histogram, labels, help }
    }

    /// Writes the metric's header. Its samples follow.
    pub fn header<'s>(&'s self, encoder: &'s mut DescriptorEncoder<'_>) -> Result<MetricEncoder<'s>, std::fmt::Error> {
        encoder.encode_descriptor(self.name, &format!("{}.", self.help), None, self.kind.into())
    }

    /// Writes one sample.
    pub fn sample(&self, mut encoder: MetricEncoder<'_>, value: Value) -> Result<(), std::fmt::Error> {
        match (self.kind, value) {
            (Kind::Counter, Value::Int(value)) => encoder.encode_counter::<NoLabelSet, _, f64>(&value, None),
            (Kind::Counter, Value::Float(value)) => encoder.encode_counter::<NoLabelSet, _, f64>(&value, None),
            (_, Value::Int(value)) => encoder.encode_gauge(&value),
            (_, Value::Float(value)) => encoder.encode_gauge(&value),
        }
    }
}

impl From<Kind> for MetricType {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Counter => Self::Counter,
            Kind::Gauge => Self::Gauge,
            Kind::Histogram => Self::Histogram,
        }
    }
}
