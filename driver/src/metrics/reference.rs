//! The lists of metrics in `docs/metrics.md`. They are generated from the descriptions, so that both always agree.
//!
//! `OCI_RS_WRITE_DOCS=1 cargo test -p oci-rs reference` rewrites the lists.

use fixtures::documents::{check, wrapped};

use super::{
    node, recorder,
    spec::{Kind, MetricSpec},
    task,
};

/// One list item per metric, in the order of a scrape.
fn list(specs: impl Iterator<Item = MetricSpec>) -> String {
    specs.map(|spec| wrapped("  ", &item(&spec))).collect()
}

fn item(spec: &MetricSpec) -> String {
    let (suffix, kind) = match spec.kind {
        Kind::Counter => ("_total", "counter"),
        Kind::Gauge => ("", "gauge"),
        Kind::Histogram => ("", "histogram"),
    };
    let labels: Vec<String> = spec.labels.iter().map(|label| format!("`{label}`")).collect();
    let labels = if labels.is_empty() { String::new() } else { format!(", by {}", labels.join(", ")) };
    let mut help = spec.help.chars();
    let first = help.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    format!("- **`{}{suffix}`** ({kind}{labels}). {first}{}.", spec.name, help.as_str())
}

fn all() -> Vec<MetricSpec> {
    task::specs().chain(node::specs()).chain(recorder::SPECS).collect()
}

#[test]
fn the_document_lists_the_metrics_of_a_scrape() {
    let nodes = node::specs().chain(recorder::SPECS);
    check("metrics.md", &[("task metrics", list(task::specs())), ("node metrics", list(nodes))]);
}

/// What `promtool check metrics` would object to, and what the formats forbid.
#[test]
fn names_follow_the_rules_of_prometheus() {
    let specs = all();
    for spec in &specs {
        assert!(spec.name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'), "{}", spec.name);
        assert!(!spec.name.ends_with("_total") && !spec.help.ends_with('.'), "{}", spec.name);
        assert!(["_count", "_sum", "_bucket", "_created"].iter().all(|end| !spec.name.ends_with(end)), "{}", spec.name);
        assert_eq!(specs.iter().filter(|other| other.name == spec.name).count(), 1, "{}", spec.name);
    }
}
