//! The text of a scrape, in the OpenMetrics format and in the older format of Prometheus.

use std::thread;

use prometheus_client::{
    collector::Collector,
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

/// The text in the OpenMetrics format 1.0. A second thread renders half of the tasks' metrics: the text of 1,000 tasks
/// has 3 MB.
pub fn openmetrics(recorder: &Recorder, node: NodeSample, tasks: Vec<TaskSample>) -> Result<String, std::fmt::Error> {
    let capacity = (tasks.len() + 4) * BYTES_PER_TASK;
    let [first, second] = Tasks::halves(tasks);
    let (mut text, rest) = thread::scope(|scope| {
        let rest = scope.spawn(move || {
            let mut text = String::with_capacity(capacity / 2);
            encode_collectors(&mut text, [Box::new(second)])?;
            Ok(text)
        });
        let mut text = String::with_capacity(capacity);
        encode_registry(&mut text, recorder.registry())?;
        encode_collectors(&mut text, [Box::new(node) as Box<dyn Collector>, Box::new(first)])?;
        Ok((text, rest.join().map_err(|_| std::fmt::Error)??))
    })?;
    text.push_str(&rest);
    encode_eof(&mut text)?;
    Ok(text)
}

fn encode_collectors<const N: usize>(text: &mut String, collectors: [Box<dyn Collector>; N]) -> std::fmt::Result {
    let mut registry = Registry::default();
    collectors.into_iter().for_each(|collector| registry.register_collector(collector));
    encode_registry(text, &registry)
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
