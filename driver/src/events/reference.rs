//! The list of events in `docs/task-events.md`. It is generated from the table of events, so that both always agree.
//!
//! `OCI_RS_WRITE_DOCS=1 cargo test -p oci-rs reference` rewrites the list.

use fixtures::documents::{check, wrapped};

use super::content::{EVENTS, EventSpec};

fn item(event: &EventSpec) -> String {
    let text = shown(event.text);
    // A text that ends with a backquote needs a space.
    let quoted = if text.contains('`') { format!("`` {text} ``") } else { format!("`{text}`") };
    let annotations: Vec<String> = event.annotations.iter().map(|name| format!("`{name}`")).collect();
    let annotations =
        if annotations.is_empty() { String::new() } else { format!(" Annotations: {}.", annotations.join(", ")) };
    wrapped("  ", &format!("- **{quoted}**: {}{annotations}", event.when.trim()))
}

/// A text as users know it, with `…` for its values.
fn shown(text: &str) -> String {
    let mut parts = text.split('{');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |shown, part| shown + "…" + part.split_once('}').map_or("", |(_, rest)| rest))
}

#[test]
fn the_document_lists_the_events() {
    let list: String = EVENTS.iter().map(item).collect();
    check("task-events.md", &[("events", format!("\n{list}\n"))]);
}

#[test]
fn values_are_not_shown() {
    assert_eq!(shown("{source} sent {count} bytes"), "… sent … bytes");
    assert_eq!(shown("Image{image}: {problem}"), "Image…: …");
}
