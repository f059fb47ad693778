//! The text of a scrape, in the OpenMetrics format and in the older format of Prometheus.

use prometheus_client::{
    encoding::text::{encode_eof, encode_registry},
    registry::Registry,
};

use super::{
    node::NodeSample,
    recorder::Recorder,
    task::{TaskSample, Tasks},
};

/// The bytes that a task takes in the text, to reserve memory.
const BYTES_PER_TASK: usize = 8 * 1024;

/// The text in the OpenMetrics format 1.0.
pub fn openmetrics(recorder: &Recorder, node: NodeSample, tasks: Vec<TaskSample>) -> Result<String, std::fmt::Error> {
    let mut text = String::with_capacity((tasks.len() + 4) * BYTES_PER_TASK);
    let mut read = Registry::default();
    read.register_collector(Box::new(node));
    read.register_collector(Box::new(Tasks(tasks)));
    encode_registry(&mut text, recorder.registry())?;
    encode_registry(&mut text, &read)?;
    encode_eof(&mut text)?;
    Ok(text)
}

/// The same text in the format 0.0.4 of Prometheus: headers name a counter with its suffix, and there is no end mark.
pub fn classic(openmetrics: &str) -> String {
    let mut text = String::with_capacity(openmetrics.len() + 1024);
    // A counter's help comes before its type.
    let mut help: Option<(&str, &str)> = None;
    for line in openmetrics.lines() {
        if let Some(described) = line.strip_prefix("# HELP ") {
            help = described.split_once(' ');
        } else if let Some(typed) = line.strip_prefix("# TYPE ") {
            let (name, kind) = typed.split_once(' ').unwrap_or((typed, "untyped"));
            let suffix = if kind == "counter" { "_total" } else { "" };
            if let Some((_, described)) = help.take().filter(|(known, _)| *known == name) {
                push(&mut text, &["# HELP ", name, suffix, " ", described]);
            }
            push(&mut text, &["# TYPE ", name, suffix, " ", kind]);
        } else if line != "# EOF" {
            push(&mut text, &[line]);
        }
    }
    text
}

fn push(text: &mut String, parts: &[&str]) {
    text.extend(parts.iter().copied().chain(["\n"]));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_classic_format_names_counters_with_their_suffix() {
        let openmetrics = "# HELP a_b Some text.\n# TYPE a_b counter\na_b_total{x=\"# EOF\"} 1\n# HELP c Other.\n\
                           # TYPE c gauge\nc 2\n# EOF\n";
        let expected = "# HELP a_b_total Some text.\n# TYPE a_b_total counter\na_b_total{x=\"# EOF\"} 1\n\
                        # HELP c Other.\n# TYPE c gauge\nc 2\n";
        assert_eq!(classic(openmetrics), expected);
    }
}
