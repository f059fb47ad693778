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

/// With fewer tasks, a second thread is not worth its start.
const TASKS_FOR_TWO_THREADS: usize = 128;

/// The text in the OpenMetrics format 1.0.
pub fn openmetrics(recorder: &Recorder, node: NodeSample, tasks: Vec<TaskSample>) -> Result<String, std::fmt::Error> {
    let number = tasks.len();
    let mut text = String::with_capacity((number + 4) * BYTES_PER_TASK);
    encode_registry(&mut text, recorder.registry())?;
    encode_registry(&mut text, &registry_of(node))?;
    let [first, second] = Tasks::in_two(tasks).map(registry_of);
    if number < TASKS_FOR_TWO_THREADS {
        encode_registry(&mut text, &first)?;
        encode_registry(&mut text, &second)?;
    } else {
        thread::scope(|scope| {
            let second = scope.spawn(|| {
                let mut text = String::with_capacity(number * BYTES_PER_TASK);
                encode_registry(&mut text, &second).map(|()| text)
            });
            encode_registry(&mut text, &first)?;
            text.push_str(&second.join().map_err(|_| std::fmt::Error)??);
            Ok(())
        })?;
    }
    encode_eof(&mut text)?;
    Ok(text)
}

fn registry_of(collector: impl Collector + 'static) -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(collector));
    registry
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
    use std::{collections::BTreeMap, sync::Arc};

    use super::*;
    use crate::metrics::TaskLabels;

    fn tasks(number: usize) -> Vec<TaskSample> {
        let sample = |id: usize| TaskSample {
            labels: Arc::new(TaskLabels::new("default", "job", "group", "task", &id.to_string())),
            image: Arc::default(),
            started_at: None,
            usage: Some(Default::default()),
            network: None,
            layer: None,
            layer_limit: Some(1),
            restarts: 0,
            execs: 0,
            execs_running: 0,
        };
        (0..number).map(sample).collect()
    }

    /// Many tasks are rendered by two threads.
    #[test]
    fn every_metric_has_its_header_once_before_the_samples_of_all_tasks() {
        let recorder = Recorder::default();
        for number in [1, TASKS_FOR_TWO_THREADS] {
            let text = openmetrics(&recorder, NodeSample::default(), tasks(number)).unwrap();
            let mut samples: BTreeMap<&str, usize> = BTreeMap::new();
            let mut metric = "";
            for line in text.lines() {
                if let Some(described) = line.strip_prefix("# TYPE ") {
                    metric = described.split(' ').next().unwrap_or_default();
                    assert_eq!(samples.insert(metric, 0), None, "{metric} has two headers");
                } else if !line.starts_with('#') {
                    assert!(line.starts_with(metric), "{line} below {metric}");
                    *samples.get_mut(metric).unwrap() += 1;
                }
            }
            for metric in ["oci_rs_task_info", "oci_rs_task_cpu_seconds", "oci_rs_task_writable_layer_limit_bytes"] {
                assert_eq!(samples.get(metric), Some(&number), "{metric}");
            }
            assert!(text.ends_with("# EOF\n"));
        }
    }

    #[test]
    fn the_classic_format_names_counters_with_their_suffix() {
        let openmetrics = "# HELP a_b Some text.\n# TYPE a_b counter\na_b_total{x=\"# EOF\"} 1\n# HELP c Other.\n\
                           # TYPE c gauge\nc 2\n# EOF\n";
        let expected = "# HELP a_b_total Some text.\n# TYPE a_b_total counter\na_b_total{x=\"# EOF\"} 1\n\
                        # HELP c Other.\n# TYPE c gauge\nc 2\n";
        assert_eq!(classic(openmetrics), expected);
    }
}
