//! Metrics that need a cause: a collection, a failed call, memory of each kind, traffic in both directions.

use std::{fs, path::Path};

use fixtures::{
    busybox::Images,
    cgroup::{Mode, mode},
    must::Must,
    wait::{eventually, seconds},
};
use kit::{
    node::Node,
    scrape::{Scrape, address, scrape_until},
};
use serde_json::json;

use crate::metrics::{add_link, cgroup_of, kernel_file, labels, sum_after, tcp};

#[tokio::test]
async fn collections_are_counted_by_cause_and_failed_calls_by_code() {
    let node = Node::new();
    let images = Images::start().await;
    // With this limit, every disk counts as full.
    let gc = json!({"image_delay": "1h", "disk_high_percent": 1});
    let mut plugin = node.launch_with(json!({"metrics": {"address": "127.0.0.1:0"}, "gc": gc})).await;
    let address = address(&plugin).await;
    let task = node.task(&images.busybox()).sh("true").build(&mut plugin).await;
    plugin.started(&task).await;
    plugin.end(&task).await;
    assert!(plugin.inspect("unknown").await.is_err());
    let removed = |scrape: &Scrape, cause| scrape.value("oci_rs_images_removed_total", &[("cause", cause)]);
    let collected = |scrape: &Scrape| removed(scrape, "disk_bytes") == Some(1.0);
    let found = scrape_until(&address, "the collection", collected).await;
    let bytes = found.value("oci_rs_images_removed_bytes_total", &[("cause", "disk_bytes")]);
    assert!(bytes > Some(500_000.0), "{bytes:?}");
    for cause in ["unused", "disk_inodes", "pull"] {
        assert_eq!(removed(&found, cause), Some(0.0), "{cause}");
    }
    let calls = |code| found.value("oci_rs_rpcs_total", &[("method", "InspectTask"), ("code", code)]);
    assert_eq!(calls("NOT_FOUND"), Some(1.0), "{}", found.text);
    node.finish(plugin).await;
}

/// The task keeps anonymous memory and page cache, and sleeps.
#[tokio::test]
async fn each_kind_of_memory_is_that_of_the_cgroup() {
    let node = Node::new();
    let mut plugin = node.launch_with(tcp()).await;
    let address = address(&plugin).await;
    let images = Images::start().await;
    let script = "x=$(head -c 4000000 /dev/zero | tr '\\0' x); head -c 6000000 /dev/zero > /local/cached; \
         touch /local/ready; sleep 1000; : $x";
    let task = node.task(&images.busybox()).sh(script).resources(100, 64, 0).build(&mut plugin).await;
    plugin.started(&task).await;
    let ready = task.dir().join("local/ready");
    assert!(eventually(seconds(20), || ready.exists()).await);
    let pid = plugin.init_pid(&task);
    let labels = labels(&task);
    let file = |name: &str| fs::read_to_string(cgroup_of(pid, "memory").join(name)).ok()?.trim().parse::<f64>().ok();
    let expected = || {
        let parts = kernel_file(pid, "memory", "memory.stat");
        let (of_cache, peak) = match mode() {
            Mode::V1 => ("total_cache ", Some(file("memory.max_usage_in_bytes").must("the peak"))),
            // Kernels before Linux 5.19 lack it.
            Mode::V2 => ("\nfile ", file("memory.peak")),
        };
        (sum_after(&parts, of_cache), peak)
    };
    let equal = |scrape: &Scrape| {
        let (cache, peak) = expected();
        let shown = |name| scrape.value(name, &labels);
        shown("oci_rs_task_memory_cache_bytes") == Some(cache) && shown("oci_rs_task_memory_peak_bytes") == peak
    };
    let scrape = scrape_until(&address, "the values of the kernel's files", equal).await;
    assert!(expected().0 >= 6_000_000.0, "{:?}", expected());
    assert_eq!(scrape.value("oci_rs_task_memory_swap_bytes", &labels), Some(0.0));
    plugin.end(&task).await;
    node.finish(plugin).await;
}

/// Both ends of a link are in the task's network, so what one sends the other receives.
#[tokio::test]
async fn the_traffic_of_each_direction_is_that_of_the_interfaces() {
    let node = Node::new();
    let mut plugin = node.launch_with(tcp()).await;
    let address = address(&plugin).await;
    let images = Images::start().await;
    let alloc = node.alloc();
    let group = alloc.network();
    add_link(Path::new(&group.path));
    let builder = node.task(&images.busybox()).in_alloc(&alloc).network(group);
    let script = "ping -c 3 -i 0.1 -W 1 192.0.2.9; touch /local/ready; sleep 1000; :";
    let task = builder.sh(script).build(&mut plugin).await;
    plugin.started(&task).await;
    let ready = task.dir().join("local/ready");
    assert!(eventually(seconds(20), || ready.exists()).await);
    let pid = plugin.init_pid(&task);
    // Bytes, packets, errors and drops of each direction.
    let interfaces = || {
        let text = fs::read_to_string(format!("/proc/{pid}/net/dev")).must("the counters of the interfaces");
        let mut sums = [0.0; 8];
        for line in text.lines().filter_map(|line| line.trim().strip_prefix('v')?.split_once(':')).map(|(_, line)| line)
        {
            let numbers: Vec<f64> =
                line.split_ascii_whitespace().map(|number| number.parse().must("a number")).collect();
            for (sum, at) in sums.iter_mut().zip([0, 1, 2, 3, 8, 9, 10, 11]) {
                *sum += numbers[at];
            }
        }
        sums
    };
    let labels = [("alloc_id", task.config.alloc_id.as_str())];
    let shown = |scrape: &Scrape| {
        let directions = ["receive", "transmit"].into_iter();
        let names = directions.flat_map(|way| ["bytes", "packets", "errors", "dropped"].map(|what| (way, what)));
        let name = |(way, what)| format!("oci_rs_task_network_{way}_{what}_total");
        names.map(|part| scrape.value(&name(part), &labels).unwrap_or(-1.0)).collect::<Vec<f64>>()
    };
    let equal = |scrape: &Scrape| shown(scrape) == interfaces();
    let found = scrape_until(&address, "the counters of the interfaces", equal).await;
    let counted = shown(&found);
    assert!(counted[1] > 0.0 && counted[5] > 0.0, "{counted:?}");
    plugin.end(&task).await;
    node.finish(plugin).await;
}
