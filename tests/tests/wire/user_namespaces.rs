//! Tasks with user namespaces of their own.

use std::{fs, os::unix::fs::MetadataExt};

use fixtures::{
    busybox::Images,
    must::Must,
    wait::{eventually, seconds},
};
use kit::{node::Node, plugin::Plugin, task::Task};
use proto::{driver::fingerprint_response::HealthState, structs::attribute::Value};
use serde_json::json;

use crate::root_storage::Nested;

const IDLE: &str = "while :; do sleep 1000; done";
const FIRST: u32 = 1 << 30;

/// A user namespace for each task with this mode.
fn block(mode: &str) -> serde_json::Value {
    json!({"mode": mode, "first_id": FIRST, "ids": 16 * 65536})
}

/// The uid of a task's process on the node.
fn uid(plugin: &Plugin, task: &Task) -> u32 {
    let status = fs::read_to_string(format!("/proc/{}/status", plugin.init_pid(task))).must("a status");
    let field = status.lines().find_map(|line| line.strip_prefix("Uid:")).must("Uid");
    field.split_whitespace().next().must("a uid").parse().must("a number")
}

#[tokio::test]
async fn a_task_has_one_or_says_why_not() {
    let node = Node::new();
    let volumes = json!({"enabled": true});
    let options = json!({"userns": block("auto"), "allow_privileged": true, "allow_caps": ["all"], "volumes": volumes});
    let mut plugin = node.launch_with(options).await;
    let images = Images::start().await;
    let own = node.task(&images.busybox()).sh(IDLE).build(&mut plugin).await;
    plugin.started(&own).await;
    let first = uid(&plugin, &own);
    assert!((FIRST..FIRST + 16 * 65536).contains(&first) && (first - FIRST).is_multiple_of(65536), "{first}");
    for (option, value, reason) in [
        ("privileged", json!(true), "the task is privileged"),
        ("pid_mode", json!("host"), "the node's PID namespace"),
        ("cap_add", json!(["sys_time"]), "CAP_SYS_TIME of `cap_add` would have no effect"),
        ("volumes", json!(["/proc/sys:/x"]), "mount source /proc/sys: its file system"),
        ("userns_mode", json!("host"), ""),
    ] {
        let task = node.task(&images.busybox()).sh(IDLE).option(option, value).build(&mut plugin).await;
        plugin.started(&task).await;
        assert_eq!(uid(&plugin, &task), 0, "{option}");
        let is_told = |text: &str| text.starts_with("The task runs in the node's user namespace");
        if reason.is_empty() {
            let events = plugin.streams.events();
            assert!(!events.iter().any(|event| event.task_id == task.id() && is_told(&event.message)), "{events:?}");
        } else {
            let mine = |text: &str| is_told(text) && text.contains(reason);
            plugin.streams.event(reason, |event| event.task_id == task.id() && mine(&event.message)).await;
        }
        plugin.end(&task).await;
    }
    plugin.end(&own).await;
    node.finish(plugin).await;
}

/// overlayfs cannot be id-mapped.
#[tokio::test]
async fn a_node_that_cannot_give_any_says_so_once() {
    let (nested, images) = (Nested::new(), Images::start().await);
    for (mode, gives, health) in [
        ("off", false, HealthState::Healthy),
        ("auto", false, HealthState::Healthy),
        ("require", false, HealthState::Unhealthy),
    ] {
        let node = Node::new();
        let mut plugin = node.launch_with(json!({"userns": block(mode), "data_dir": nested.data_dir()})).await;
        let told = plugin.streams.fingerprint().await;
        let attribute = &told.attributes["driver.oci-rs.userns"];
        assert_eq!(attribute.value, Some(Value::BoolVal(gives)), "{mode}");
        assert_eq!(told.health(), health, "{mode}: {}", told.health_description);
        let task = node.task(&images.busybox()).sh(IDLE).build(&mut plugin).await;
        if health == HealthState::Healthy {
            plugin.started(&task).await;
            assert_eq!(uid(&plugin, &task), 0);
            plugin.end(&task).await;
            let events = plugin.streams.events();
            assert!(!events.iter().any(|event| event.message.contains("user namespace")), "{events:?}");
        } else {
            assert!(told.health_description.contains("`data_dir`"), "{}", told.health_description);
            let error = plugin.start(&task).await.expect_err("refused");
            assert!(error.message().contains("this node requires one and cannot give any"), "{error}");
            plugin.destroy(task.id(), true).await.ok();
        }
        node.finish(plugin).await;
    }
    let node = Node::new();
    let plugin = node.launch_with(json!({"userns": block("auto")})).await;
    let told = plugin.streams.fingerprint().await;
    assert_eq!(told.attributes["driver.oci-rs.userns"].value, Some(Value::BoolVal(true)));
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_required_one_is_never_left_out() {
    let node = Node::new();
    let allowed = json!({"userns": ["host"], "pid": ["host"]});
    let options = json!({"userns": block("require"), "allowed_modes": allowed, "volumes": {"enabled": true}});
    let mut plugin = node.launch_with(options).await;
    let images = Images::start().await;
    for (option, value, reason) in [
        ("pid_mode", json!("host"), "the node's PID namespace"),
        ("volumes", json!(["/proc/sys:/x"]), "mount source /proc/sys"),
    ] {
        let task = node.task(&images.busybox()).sh(IDLE).option(option, value).build(&mut plugin).await;
        let error = plugin.start(&task).await.expect_err("refused");
        let text = error.message();
        assert!(text.contains(reason) && text.contains("userns_mode = \"host\""), "{text}");
    }
    let host = node.task(&images.busybox()).sh(IDLE).option("userns_mode", json!("host")).build(&mut plugin).await;
    plugin.started(&host).await;
    assert_eq!(uid(&plugin, &host), 0);
    plugin.end(&host).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn tasks_share_the_allocation_and_keep_their_ids() {
    let node = Node::new();
    let mut plugin = node.launch_with(json!({"userns": block("require")})).await;
    let images = Images::start().await;
    let alloc = node.alloc();
    let script = |name: &str| format!("echo {name} > /alloc/data/{name}; {IDLE}");
    let one = node.task(&images.busybox()).in_alloc(&alloc).name("one").sh(&script("one")).build(&mut plugin).await;
    let other = node.task(&images.busybox()).in_alloc(&alloc).name("other").user("1000").sh(IDLE);
    let other = other.build(&mut plugin).await;
    let handles = [plugin.started(&one).await, plugin.started(&other).await];
    assert_ne!(uid(&plugin, &one) / 65536, uid(&plugin, &other) / 65536, "two ranges");
    let file = one.dir().join("../alloc/data/one");
    assert!(eventually(seconds(10), || file.exists()).await, "the file");
    assert_eq!(fs::metadata(&file).must("the file").uid(), 0, "on disk it belongs to root");
    let seen = plugin.sh(&other, "cat /alloc/data/one; stat -c %u /alloc/data/one /local /secrets; id -u").await;
    let lines: Vec<&str> = seen.lines().collect();
    assert_eq!((lines[0], lines[1], lines[4]), ("one", "0", "1000"), "{seen}");
    // A plugin that takes over knows the ids in use.
    plugin.process.kill().await;
    let mut plugin = node.launch_with(json!({"userns": block("require")})).await;
    for handle in &handles {
        plugin.recover(handle).await.must("RecoverTask");
    }
    assert_eq!(plugin.sh(&one, "id -u").await, "0");
    let third = node.task(&images.busybox()).sh(IDLE).build(&mut plugin).await;
    plugin.started(&third).await;
    let ranges = [&one, &other, &third].map(|task| uid(&plugin, task) / 65536);
    assert!(ranges[2] != ranges[0] && ranges[2] != ranges[1], "{ranges:?}");
    for task in [&one, &other, &third] {
        plugin.end(task).await;
    }
    node.finish(plugin).await;
}
