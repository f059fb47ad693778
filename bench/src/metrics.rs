//! The cost of a scrape with many tasks: its time, and the plugin's processor time.
//!
//! A Nomad agent asks for the statistics of each running task once a second. The plugin has files open for them, and a
//! scrape uses these files and what was read last. So there is a row with these streams and one without. The processor
//! time of a scrape is that of seconds with scrapes, less that of as many without.

use std::time::{Duration, Instant};

use fixtures::must::Must;
use kit::{plugin::binary, scrape, task::Task};
use serde_json::json;
use tokio::task::JoinSet;

use crate::{
    images,
    ours::Ours,
    process::ticks,
    report::{median, milliseconds, note, range, say},
    workdir::WorkDirectory,
};

const IDLE: [&str; 2] = ["sleep", "100000"];
/// The numbers of tasks with which scrapes are measured.
const STEPS: [usize; 3] = [10, 100, 1000];
const SCRAPES: u32 = 20;
/// A reading is used for a second, so a later scrape reads again.
const PAUSE: Duration = Duration::from_millis(1050);
/// The clock ticks per second in `/proc/<pid>/stat` (`USER_HZ`).
const TICKS: f64 = 100.0;
/// The usual time between two scrapes of Prometheus.
const INTERVAL: f64 = 15.0;
/// The agent's usual time between two statistics of a task (`telemetry.collection_interval`).
const STATISTICS: Duration = Duration::from_secs(1);

/// Measures scrapes, only for oci-rs.
pub async fn measure(workdir: &WorkDirectory) {
    let data = workdir.fresh("metrics");
    let Some((_registry, image)) = images::small() else { return };
    let options = json!({"metrics": {"address": "127.0.0.1:0"}, "network": {"default_mode": "host"}});
    let mut ours = Ours::launch_with(&binary(), "oci-rs", &data, options).await;
    let address = scrape::address(&ours.plugin).await;
    say(
        "\n### metrics: one scrape\n\n| tasks | agent's statistics | size, KiB | median ms | lowest | highest | CPU ms \
         per scrape | % of a core at one scrape in 15 s |\n|---:|---|---:|---:|---:|---:|---:|---:|",
    );
    let mut tasks: Vec<Task> = Vec::new();
    for step in STEPS {
        note(&format!("scrapes with {step} tasks"));
        while tasks.len() < step {
            let task = ours.task(&image, &IDLE).await;
            ours.plugin.started(&task).await;
            tasks.push(task);
        }
        row(&ours, &address, step, "no").await;
        let mut agent = JoinSet::new();
        for task in &tasks {
            let mut stream = ours.plugin.stats(task.id(), STATISTICS).await.must("TaskStats");
            stream.message().await.must("TaskStats").must("statistics");
            agent.spawn(async move { while let Ok(Some(_)) = stream.message().await {} });
        }
        row(&ours, &address, step, "yes").await;
        agent.shutdown().await;
    }
    for task in &tasks {
        ours.remove(task).await;
    }
    ours.finish().await;
}

async fn row(ours: &Ours, address: &str, tasks: usize, statistics: &str) {
    // The first scrape finds the tasks, and starts a measurement of their writable layers.
    for _ in 0..2 {
        scrape::scrape(address).await;
        tokio::time::sleep(PAUSE).await;
    }
    let pid = ours.plugin.process.pid();
    let (mut times, mut size) = (Vec::new(), 0);
    let (before, start) = (ticks(pid), Instant::now());
    for _ in 0..SCRAPES {
        let begun = Instant::now();
        let answer = scrape::request(address, "GET", "/metrics", scrape::OPENMETRICS).await.must("a scrape");
        times.push(begun.elapsed());
        size = answer.text.len();
        tokio::time::sleep(PAUSE).await;
    }
    let after = ticks(pid);
    // As long again without scrapes.
    tokio::time::sleep(start.elapsed()).await;
    let cpu = 1000.0 * (2.0 * after - before - ticks(pid)) / TICKS / f64::from(SCRAPES);
    let middle = median(&times.iter().map(milliseconds).collect::<Vec<_>>()).unwrap_or_default();
    let (low, high) = range(times.iter().map(milliseconds));
    let share = cpu / 10.0 / INTERVAL;
    let size = size / 1024;
    say(&format!("| {tasks} | {statistics} | {size} | {middle:.1} | {low:.1} | {high:.1} | {cpu:.1} | {share:.2} |"));
}
