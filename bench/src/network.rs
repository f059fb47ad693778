//! The additional time of a start with the task's own network. It runs in a test network, so the machine's network
//! stays unchanged.

use std::sync::Arc;

use fixtures::{
    must::Must,
    netns::{TestNetwork, cni_path},
};
use kit::{
    node::Node,
    plugin::{Plugin, binary},
    task::Task,
};
use serde_json::json;

use crate::{
    images,
    ours::Ours,
    process::SAY_READY,
    quiet::Quiet,
    report::{Series, note},
    workdir::{Fresh, WorkDirectory},
};

/// The networks that are compared: their name in the table, `network_mode`, and whether a port is published.
const NETWORKS: [(&str, &str, bool); 4] = [
    ("the host's network", "host", false),
    ("no network (`none`)", "none", false),
    ("own bridge", "bridge", false),
    ("own bridge, one port published", "bridge", true),
];

/// Measures the table.
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
        let mut series = Series::default();
        // The first round makes the bridge and the chains, and is not counted.
        for number in 0..=rounds {
            if number % 5 == 0 {
                quiet.wait().await;
            }
            for (name, mode, publish) in NETWORKS {
                let task = task(&ours.node, &mut ours.plugin, &image, mode, publish).await;
                let took = ours.time(task).await;
                if number > 0 {
                    series.add(name, took);
                }
            }
        }
        series.table("start, by network");
        ours.finish().await;
        quiet
    })
}

async fn task(node: &Node, plugin: &mut Plugin, image: &str, mode: &str, publish: bool) -> Task {
    let (program, args) = SAY_READY.split_first().must("a command");
    let task = node.task(image).command(program, args).option("network_mode", json!(mode));
    let task = if publish { task.port("http", &TestNetwork::NODE.to_string(), 20080, 80) } else { task };
    task.build(plugin).await
}
