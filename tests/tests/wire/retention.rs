//! The removal of unused images: when it happens, and that it removes nothing else.

use std::fs;

use fixtures::{
    busybox::Images,
    must::Must,
    wait::{eventually, seconds},
};
use kit::{node::Node, plugin::Plugin};
use serde_json::json;

fn count(node: &Node, directory: &str) -> usize {
    fs::read_dir(node.data_dir().join("images").join(directory)).must("a directory of the store").count()
}

/// The records, layers and documents of all images.
fn empty(node: &Node) -> bool {
    ["images", "layers", "manifests", "configs", "leases"].iter().all(|directory| count(node, directory) == 0)
}

async fn run_once(node: &Node, plugin: &mut Plugin, image: &str) {
    let task = node.task(image).sh("true").build(plugin).await;
    plugin.started(&task).await;
    assert_eq!(plugin.wait(task.id()).await.code, 0);
    plugin.destroy(task.id(), true).await.must("DestroyTask");
}

#[tokio::test]
async fn an_image_is_removed_after_its_last_task() {
    let node = Node::new();
    let mut plugin = node.launch_with(json!({"gc": {"image_delay": "1s"}})).await;
    let images = Images::start().await;
    let long = node.task(&images.busybox()).sh("sleep 1000").build(&mut plugin).await;
    plugin.started(&long).await;
    run_once(&node, &mut plugin, &images.busybox()).await;
    // Another image with the same layer.
    run_once(&node, &mut plugin, &images.with_config("other", json!({"Labels": {"a": "b"}}))).await;
    // Only the running task's image is left.
    let left = || ["images", "configs", "layers"].map(|directory| count(&node, directory));
    assert!(eventually(seconds(20), || left() == [1, 1, 1]).await, "{:?}", left());
    plugin.destroy(long.id(), true).await.must("DestroyTask");
    assert!(eventually(seconds(20), || empty(&node)).await);
    let log = || fs::read_to_string(node.data_dir().join("oci-rs.log")).must("the log file");
    let told = || log().lines().filter(|line| line.contains("image removed")).count();
    assert!(eventually(seconds(20), || told() == 2).await, "{}", log());
    // The image is pulled again when a task needs it.
    run_once(&node, &mut plugin, &images.busybox()).await;
    node.finish(plugin).await;
}

/// The state is on disk: another process continues with it.
#[tokio::test]
async fn retention_survives_a_plugin_restart() {
    let node = Node::new();
    let images = Images::start().await;
    let mut plugin = node.launch_with(json!({"gc": {"image_delay": "1h"}})).await;
    run_once(&node, &mut plugin, &images.busybox()).await;
    assert_eq!(count(&node, "images"), 1);
    plugin.process.kill().await;
    let plugin = node.launch_with(json!({"gc": {"image_delay": "1s"}})).await;
    assert!(eventually(seconds(20), || empty(&node)).await);
    node.finish(plugin).await;
}

#[tokio::test]
async fn images_are_removed_early_when_the_disk_is_full() {
    let node = Node::new();
    let images = Images::start().await;
    // With this limit, every disk counts as full.
    let full = json!({"gc": {"image_delay": "1h", "disk_high_percent": 1}});
    let mut plugin = node.launch_with(full).await;
    run_once(&node, &mut plugin, &images.busybox()).await;
    assert!(eventually(seconds(20), || empty(&node)).await);
    node.finish(plugin).await;
}

#[tokio::test]
async fn the_operator_can_disable_image_removal() {
    let node = Node::new();
    let images = Images::start().await;
    let keep = json!({"gc": {"image": false, "image_delay": "1s", "disk_high_percent": 1}});
    let mut plugin = node.launch_with(keep).await;
    run_once(&node, &mut plugin, &images.busybox()).await;
    tokio::time::sleep(seconds(3)).await;
    assert_eq!(count(&node, "images"), 1);
    node.finish(plugin).await;
}
