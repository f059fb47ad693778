//! The additional time of a start and of an end with the task's own network, one task after the other and many at once.
//! It runs in a test network, so the machine's network stays unchanged.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use fixtures::{
    must::Must,
    netns::{TestNetwork, cni_path},
    wait::seconds,
};
use futures_util::future::join_all;
use kit::{
    node::Node,
    plugin::{Plugin, binary},
    task::Task,
};
use serde_json::json;

use crate::{
    images,
    ours::Ours,
    process::{READY, SAY_READY},
    quiet::Quiet,
    report::{Series, median, milliseconds, note, say},
    workdir::{Fresh, WorkDirectory},
};

/// The networks that are compared: their name in the table, `network_mode`, and whether a port is published.
const NETWORKS: [(&str, &str, bool); 4] = [
    ("the host's network", "host", false),
    ("no network (`none`)", "none", false),
    ("own bridge", "bridge", false),
    ("own bridge, one port published", "bridge", true),
];

/// The tasks that are started at once. Two such crowds are destroyed at once.
const CROWD: u16 = 100;
const CROWDS: usize = 3;

/// Measures the tables.
pub async fn measure(workdir: &WorkDirectory, quiet: &mut Quiet, rounds: usize) {
    note("network");
    // The file system is unmounted in the thread that mounted it.
    let data = Arc::new(workdir.fresh("network"));
    let shared = Arc::clone(&data);
    // Only a dedicated thread can enter a test network.
    let waited = std::mem::take(quiet);
    let measured = tokio::task::spawn_blocking(move || in_test_network(&shared, waited, rounds));
    *quiet = measured.await.must("the measurement");
}

fn in_test_network(data: &Fresh, mut quiet: Quiet, rounds: usize) -> Quiet {
    let _netns = TestNetwork::enter();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().must("an async runtime");
    runtime.block_on(async {
        let Some((_registry, image)) = images::small() else { return quiet };
        let options = json!({"cni_path": cni_path(), "default_mode": "host"});
        let mut ours = Ours::launch(&binary(), "oci-rs", data, options).await;
        let (mut starts, mut ends) = (Series::default(), Series::default());
        // The first round makes the bridge and the chains, and is not counted.
        for number in 0..=rounds {
            if number % 5 == 0 {
                quiet.wait().await;
            }
            for (name, mode, publish) in NETWORKS {
                let port = publish.then_some(20080);
                let task = task(&ours.node, &mut ours.plugin, &image, mode, port).await;
                let (start, end) = time(&ours.plugin, task).await;
                if number > 0 {
                    starts.add(name, start);
                    ends.add(name, end);
                }
            }
        }
        starts.table("start, by network");
        ends.table("DestroyTask of an ended task, by network");
        say(&format!(
            "\n### many tasks at once, ms\n\n| | {CROWD} started | {} destroyed |\n|---|---:|---:|",
            2 * CROWD
        ));
        for (name, mode, publish) in NETWORKS {
            crowd(&mut ours, &image, name, mode, publish).await;
        }
        ours.finish().await;
        quiet
    })
}

async fn task(node: &Node, plugin: &mut Plugin, image: &str, mode: &str, port: Option<u16>) -> Task {
    let (program, args) = SAY_READY.split_first().must("a command");
    let task = node.task(image).command(program, args).option("network_mode", json!(mode));
    let task = match port {
        Some(port) => task.port("http", &TestNetwork::NODE.to_string(), port, 80),
        None => task,
    };
    task.build(plugin).await
}

/// The time from the call of StartTask to its answer and the first output, and the time of DestroyTask.
async fn time(plugin: &Plugin, task: Task) -> (Duration, Duration) {
    let begun = Instant::now();
    let (_, _) = tokio::join!(plugin.started(&task), task.stdout().contains(READY, seconds(60)));
    let start = begun.elapsed();
    plugin.wait(task.id()).await;
    let begun = Instant::now();
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    (start, release(begun, &[task]))
}

/// Removes the client's part of tasks. Returns the time before that.
fn release(begun: Instant, tasks: &[Task]) -> Duration {
    let took = begun.elapsed();
    for task in tasks {
        let failures = task.alloc.release();
        assert!(failures.is_empty(), "{failures:?}");
    }
    took
}

/// Prints the medians of some crowds on one network.
async fn crowd(ours: &mut Ours, image: &str, name: &str, mode: &str, publish: bool) {
    let (mut starts, mut ends) = (Vec::new(), Vec::new());
    for _ in 0..CROWDS {
        let mut tasks = Vec::new();
        for number in 0..2 * CROWD {
            let port = publish.then_some(21_000 + number);
            tasks.push(task(&ours.node, &mut ours.plugin, image, mode, port).await);
        }
        let plugin = &ours.plugin;
        for crowd in tasks.chunks(CROWD.into()) {
            let begun = Instant::now();
            join_all(crowd.iter().map(|task| plugin.started(task))).await;
            starts.push(milliseconds(&begun.elapsed()));
        }
        join_all(tasks.iter().map(|task| plugin.wait(task.id()))).await;
        let begun = Instant::now();
        let destroyed = join_all(tasks.iter().map(|task| plugin.destroy(task.id(), true))).await;
        ends.push(milliseconds(&release(begun, &tasks)));
        destroyed.into_iter().for_each(|answer| answer.must("DestroyTask"));
    }
    let middle = |times: &[f64]| median(times).unwrap_or_default();
    say(&format!("| {name} | {:.0} | {:.0} |", middle(&starts), middle(&ends)));
}
