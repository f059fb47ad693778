//! Labels: those of a task, and labels whose values others choose.

use std::{
    collections::BTreeSet,
    fmt::Write,
    sync::{Mutex, PoisonError},
};

use prometheus_client::encoding::{EncodeLabelSet, LabelSetEncoder};

/// The value of a label for all values beyond the bound.
const OTHER: &str = "other";

/// The labels of a task, with the names that Nomad's own metrics have. They are rendered once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskLabels {
    /// All labels but the last one, rendered, and the name of the last one.
    head: String,
    alloc_id: String,
}

impl TaskLabels {
    /// The labels by their names.
    pub const NAMES: [&'static str; 5] = ["namespace", "job", "task_group", "task", "alloc_id"];

    /// The labels of a task.
    pub fn new(namespace: &str, job: &str, task_group: &str, task: &str, alloc_id: &str) -> Self {
        let mut head = String::new();
        for (name, value) in Self::NAMES.iter().zip([namespace, job, task_group, task]) {
            head.push_str(name);
            head.push_str("=\"");
            value.chars().for_each(|c| match c {
                '\\' | '"' => head.extend(['\\', c]),
                '\n' => head.push_str("\\n"),
                c => head.push(c),
            });
            head.push_str("\",");
        }
        head.push_str("alloc_id");
        Self { head, alloc_id: alloc_id.to_owned() }
    }
}

impl EncodeLabelSet for TaskLabels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), std::fmt::Error> {
        let mut label = encoder.encode_label();
        // The name of a label is written as it is, so the rendered labels go before it.
        let mut name = label.encode_label_key()?;
        name.write_str(&self.head)?;
        let mut value = name.encode_label_value()?;
        value.write_str(&self.alloc_id)?;
        value.finish()
    }
}

/// A label whose values are bounded in number: the first ones keep their names.
#[derive(Debug)]
pub struct BoundedLabel {
    known: Mutex<BTreeSet<String>>,
    limit: usize,
}

impl BoundedLabel {
    /// A label with at most `limit` values, and one for all others.
    pub fn new(limit: usize) -> Self {
        Self { known: Mutex::default(), limit }
    }

    /// The value to use for `name`.
    pub fn value(&self, name: &str) -> String {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.contains(name) {
            if known.len() >= self.limit {
                return OTHER.to_owned();
            }
            known.insert(name.to_owned());
        }
        name.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::{
        encoding::text::encode,
        metrics::{family::Family, gauge::Gauge},
        registry::Registry,
    };

    use super::*;

    #[test]
    fn labels_are_escaped_and_named_as_nomads() {
        let labels = TaskLabels::new("default", "a \"b\"", "g\\1", "t\n", "id\"");
        let expected = r#"namespace="default",job="a \"b\"",task_group="g\\1",task="t\n",alloc_id="id\"""#;
        let mut registry = Registry::default();
        let family = Family::<Vec<(String, String)>, Gauge>::default();
        // The library's own rendering of the same labels.
        let values = ["default", "a \"b\"", "g\\1", "t\n", "id\""];
        let pairs = TaskLabels::NAMES.iter().zip(values).map(|(name, value)| ((*name).to_owned(), value.to_owned()));
        family.get_or_create(&pairs.collect()).set(1);
        registry.register("x", "x", family);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        assert!(text.contains(&format!("x{{{expected}}} 1")), "{text}");
        assert!(expected.starts_with(&labels.head) && labels.alloc_id == "id\"");
    }

    #[test]
    fn a_bounded_label_keeps_its_first_values() {
        let label = BoundedLabel::new(2);
        assert_eq!(["a", "b", "c", "a"].map(|name| label.value(name)), ["a", "b", "other", "a"]);
    }
}
