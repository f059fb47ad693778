//! `storage_opt { size }`: writable layers with a limit.

use std::time::Duration;

use fixtures::{busybox::Images, must::Must, wait::seconds};
use kit::{
    node::Node,
    plugin::Plugin,
    scrape::{Scrape, address, scrape_until},
    task::Task,
};
use serde_json::{Value as Json, json};

use crate::operator::run;

pub const IDLE: &str = "while :; do sleep 1000; done";
pub const MEBIBYTE: u64 = 1 << 20;

/// A running task with these options of the storage driver.
pub async fn running(node: &Node, plugin: &mut Plugin, images: &Images, options: Json) -> Task {
    let task = node.task(&images.busybox()).sh(IDLE).option("storage_opt", options).build(plugin).await;
    plugin.started(&task).await;
    task
}

/// The size of the task's root file system, and the free space in it.
pub async fn space(plugin: &Plugin, task: &Task) -> (u64, u64) {
    let line = plugin.sh(task, "df -k / | tail -n 1").await;
    let numbers: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [total, _, free] = numbers[..] else { panic!("{line}") };
    (total * 1024, free * 1024)
}

pub async fn exec(plugin: &Plugin, task: &Task, script: &str) -> (i32, String) {
    let answer = plugin.exec(task.id(), &["/bin/sh", "-c", script], seconds(20)).await.must("ExecTask");
    let text = [answer.stdout, answer.stderr].concat();
    (answer.result.must("a result").exit_code, String::from_utf8_lossy(&text).into_owned())
}

#[tokio::test]
async fn a_full_layer_is_an_error_of_that_task_alone_and_is_told_once() {
    let (node, images) = (Node::new(), Images::start().await);
    let options = json!({"metrics": {"address": "127.0.0.1:0"}});
    let mut plugin = node.launch_with(options.clone()).await;
    let address = address(&plugin).await;
    let small = node.task(&images.busybox()).sh(IDLE).option("storage_opt", json!({"size": "8M"}));
    let small = small.build(&mut plugin).await;
    let handle = plugin.started(&small).await;
    let other = running(&node, &mut plugin, &images, json!({"size": "8M"})).await;
    let (total, free) = space(&plugin, &small).await;
    assert!(free >= 8 * MEBIBYTE && total < 11 * MEBIBYTE, "{free} of {total} bytes are free");
    let mut stats = plugin.stats(small.id(), Duration::from_millis(100)).await.must("TaskStats");
    stats.message().await.must("an answer").must("statistics");
    let is_told = |event: &proto::driver::DriverTaskEvent| event.message.contains("writable layer is full");
    assert!(!plugin.streams.events().iter().any(is_told), "{:?}", plugin.streams.events());
    let (code, text) = exec(&plugin, &small, "dd if=/dev/zero of=/big bs=64k count=200").await;
    assert!(code != 0 && text.contains("No space left on device"), "{code}: {text}");
    let told = plugin.streams.event("a full layer", is_told).await;
    assert!(told.task_id == small.id() && told.message.contains("8.0 MiB"), "{told:?}");
    // Mounts of the task and other tasks have their own space.
    plugin.sh(&small, "dd if=/dev/zero of=/local/data bs=64k count=200 2>/dev/null").await;
    plugin.sh(&other, "dd if=/dev/zero of=/big bs=64k count=100 2>/dev/null").await;
    // Files that are removed make room.
    plugin.sh(&small, "rm /big && dd if=/dev/zero of=/big bs=64k count=100 2>/dev/null").await;
    stats.message().await.must("an answer").must("statistics");
    let (code, _) = exec(&plugin, &small, "dd if=/dev/zero of=/more bs=64k count=200").await;
    assert_ne!(code, 0);
    for _ in 0..3 {
        stats.message().await.must("an answer").must("statistics");
    }
    assert_eq!(plugin.streams.events().iter().filter(|event| is_told(event)).count(), 1);
    drop(stats);
    let labels = [("alloc_id", small.config.alloc_id.as_str())];
    let bytes = |scrape: &Scrape| scrape.value("oci_rs_task_writable_layer_bytes", &labels);
    let is_full = |scrape: &Scrape| bytes(scrape).is_some_and(|bytes| bytes > (6 * MEBIBYTE) as f64);
    let scrape = scrape_until(&address, "the size of the full layer", is_full).await;
    assert_eq!(scrape.value("oci_rs_task_writable_layer_limit_bytes", &labels), Some((8 * MEBIBYTE) as f64));
    let usage = run(&node, &["stats", "--no-stream", "--json"]).await.json();
    let usage = usage.as_array().into_iter().flatten().find(|task| task["allocation"] == small.config.alloc_id);
    let usage = usage.must("the task's statistics");
    assert_eq!(usage["writable_layer_limit_bytes"], 8 * MEBIBYTE);
    assert!(usage["writable_layer_bytes"].as_u64() > Some(6 * MEBIBYTE), "{usage}");
    // The next plugin reads that the layer is full, and that it was told.
    plugin.process.kill().await;
    let plugin = node.launch_with(options).await;
    plugin.recover(&handle).await.must("RecoverTask");
    let mut stats = plugin.stats(small.id(), Duration::from_millis(100)).await.must("TaskStats");
    for _ in 0..3 {
        stats.message().await.must("an answer").must("statistics");
    }
    assert!(!plugin.streams.events().iter().any(is_told), "{:?}", plugin.streams.events());
    plugin.end(&small).await;
    plugin.end(&other).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn the_operator_sets_a_default_and_a_maximum() {
    let (node, images) = (Node::new(), Images::start().await);
    let userns = json!({"mode": "auto", "first_id": 1 << 30, "ids": 16 * 65536});
    let options = json!({"writable_layer": {"size": "4M", "max_size": "16M"}, "userns": userns});
    let mut plugin = node.launch_with(options).await;
    for (options, expected) in [(json!({}), 4), (json!({"size": "16m"}), 16)] {
        let task = running(&node, &mut plugin, &images, options).await;
        let (total, free) = space(&plugin, &task).await;
        assert!((expected..expected + 2).contains(&(free / MEBIBYTE)), "{free} of {total} bytes are free");
        assert_eq!(plugin.sh(&task, "echo x > /etc/new && chown 7:8 /etc/new && stat -c %u:%g /etc/new").await, "7:8");
        plugin.end(&task).await;
    }
    for (size, problem) in [("17M", "more than the 16777216 that this node allows"), ("1k", "is too small")] {
        let task = node.task(&images.busybox()).sh(IDLE).option("storage_opt", json!({"size": size}));
        let task = task.build(&mut plugin).await;
        let status = plugin.start(&task).await.err().must("a refusal");
        assert!(status.message().contains("storage_opt") && status.message().contains(problem), "{status}");
        plugin.destroy(task.id(), true).await.ok();
    }
    node.finish(plugin).await;
}

/// The limit is part of the container.
#[tokio::test]
async fn a_limit_outlives_the_plugin() {
    let (node, images) = (Node::new(), Images::start().await);
    let mut plugin = node.launch().await;
    let task = node.task(&images.busybox()).sh(IDLE).option("storage_opt", json!({"size": "4M"}));
    let task = task.build(&mut plugin).await;
    let handle = plugin.started(&task).await;
    plugin.process.kill().await;
    let plugin = node.launch().await;
    plugin.recover(&handle).await.must("RecoverTask");
    let (code, text) = exec(&plugin, &task, "dd if=/dev/zero of=/big bs=64k count=200").await;
    assert!(code != 0 && text.contains("No space left on device"), "{code}: {text}");
    plugin.end(&task).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_copied_root_has_no_limit_and_a_task_is_told_so() {
    let (node, images) = (Node::new(), Images::start().await);
    let mut plugin = node.launch_with(json!({"rootfs": "copy", "writable_layer": {"size": "4M"}})).await;
    let task = running(&node, &mut plugin, &images, json!({})).await;
    let told = "`writable_layer` does not limit this task";
    plugin.streams.event(told, |event| event.task_id == task.id() && event.message.contains(told)).await;
    plugin.end(&task).await;
    let task = node.task(&images.busybox()).sh(IDLE).option("storage_opt", json!({"size": "4M"}));
    let task = task.build(&mut plugin).await;
    let status = plugin.start(&task).await.err().must("a refusal");
    assert!(status.message().contains("storage_opt: the writable layer of a copied root has no limit"), "{status}");
    plugin.destroy(task.id(), true).await.ok();
    node.finish(plugin).await;
}
