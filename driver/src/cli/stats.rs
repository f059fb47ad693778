//! `oci-rs stats`: the resource usage of tasks, once or again and again.

use std::{
    io::{self, IsTerminal, Write},
    time::{Duration, Instant, SystemTime},
};

use runtime::CpuStats;
use serde_json::{Value, json};

use super::{
    arguments::StatsArguments,
    failure::Failure,
    format,
    output::Output,
    tasks::{Task, choose, short_alloc},
    usage::{Meter, Usage},
};

/// The time between the two readings of a single table.
const SINGLE: Duration = Duration::from_millis(500);

/// Clears the screen and moves to its first line (ECMA-48: ED, CUP).
const CLEAR: &str = "\u{1b}[H\u{1b}[2J";

/// Runs the command.
pub fn run(arguments: &StatsArguments) -> Result<(), Failure> {
    let output = Output { json: arguments.node.json };
    let is_live = !arguments.no_stream && io::stdout().is_terminal() && !output.json;
    let interval = if arguments.no_stream { SINGLE.min(arguments.interval) } else { arguments.interval };
    loop {
        // Tasks come and go, so each table looks for them again.
        let samples = measure(arguments, interval)?;
        if is_live {
            write!(io::stdout(), "{CLEAR}")?;
        }
        report(&samples, arguments.no_trunc, &output)?;
        io::stdout().flush()?;
        if arguments.no_stream {
            return Ok(());
        }
    }
}

/// A running task and its usage.
struct Sample {
    task: Task,
    usage: Usage,
}

/// Two readings of each running task, so that the CPU usage is known. A task that ends meanwhile is left out.
fn measure(arguments: &StatsArguments, interval: Duration) -> Result<Vec<Sample>, Failure> {
    let mut tasks = chosen(arguments)?;
    tasks.retain(Task::is_running);
    let begun: Vec<(Task, Meter, CpuStats, Instant)> = tasks
        .into_iter()
        .filter_map(|task| {
            let meter = Meter::open(&task)?;
            let first = meter.read(CpuStats::default(), Duration::ZERO)?;
            Some((task, meter, first.stats.cpu, Instant::now()))
        })
        .collect();
    // The interval of the measurement, not a wait for an event.
    std::thread::sleep(interval);
    let second = |(task, meter, first, at): (Task, Meter, CpuStats, Instant)| {
        let usage = meter.read(first, at.elapsed())?;
        Some(Sample { task, usage })
    };
    Ok(begun.into_iter().filter_map(second).collect())
}

/// The tasks with these names, or all.
fn chosen(arguments: &StatsArguments) -> Result<Vec<Task>, Failure> {
    let tasks = Task::all(&arguments.node)?;
    if arguments.names.is_empty() {
        return Ok(tasks);
    }
    let candidates: Vec<_> = tasks.iter().map(Task::candidate).collect();
    let named = arguments.names.iter().map(|name| choose(&candidates, name)).collect::<Result<Vec<_>, _>>()?;
    let chosen = tasks.into_iter().enumerate().filter(|(index, _)| named.contains(index));
    Ok(chosen.map(|(_, task)| task).collect())
}

fn report(samples: &[Sample], whole: bool, output: &Output) -> io::Result<()> {
    if output.json {
        return output.value(&samples.iter().map(sample_json).collect());
    }
    let titles = ["ALLOC", "JOB", "TASK", "CPU", "MEMORY / LIMIT", "MEMORY", "PIDS", "THROTTLED", "OOM KILLS"];
    let mut rows = vec![titles.map(str::to_owned).to_vec()];
    rows.extend(samples.iter().map(|Sample { task, usage }| {
        let alloc = &task.notes.alloc;
        vec![
            if whole { alloc.clone() } else { short_alloc(alloc).to_owned() },
            task.notes.job.clone(),
            task.notes.task.clone(),
            usage.cpu(),
            usage.memory_and_limit(),
            usage.memory_percent().map_or_else(|| "-".to_owned(), |percent| format!("{percent:.1}%")),
            usage.stats.pids.to_string(),
            format!("{:.1}s", usage.stats.cpu.throttled_ns as f64 / 1e9),
            usage.stats.oom_kills.to_string(),
        ]
    }));
    if whole { output.table(&rows) } else { output.fitted(&rows, &[1]) }
}

/// The usage of a task as JSON. The reference of commands lists the fields.
fn sample_json(Sample { task, usage }: &Sample) -> Value {
    let (cpu, memory) = (&usage.stats.cpu, &usage.stats.memory);
    json!({
        "plugin": task.plugin().as_str(),
        "allocation": task.notes.alloc, "namespace": task.notes.namespace, "job": task.notes.job,
        "group": task.notes.group, "task": task.notes.task, "container": task.view.id.as_str(),
        "read_at": format::rfc3339(SystemTime::now()),
        "cpu_percent": usage.cpu_percent,
        "cpu_seconds": cpu.total_ns as f64 / 1e9,
        "cpu_user_seconds": cpu.user_ns as f64 / 1e9, "cpu_system_seconds": cpu.system_ns as f64 / 1e9,
        "throttled_periods": cpu.throttled_periods, "throttled_seconds": cpu.throttled_ns as f64 / 1e9,
        "memory_bytes": memory.usage, "memory_limit_bytes": usage.memory_limit,
        "memory_rss_bytes": memory.rss, "memory_cache_bytes": memory.cache, "memory_swap_bytes": memory.swap,
        "memory_peak_bytes": memory.max_usage, "memory_kernel_bytes": memory.kernel,
        "oom_kills": usage.stats.oom_kills, "pids": usage.stats.pids,
        "writable_layer_bytes": usage.layer.map(|layer| layer.bytes),
        "writable_layer_limit_bytes": usage.layer.map(|layer| layer.limit),
    })
}
