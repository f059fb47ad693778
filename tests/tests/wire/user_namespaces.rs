//! Tasks with user namespaces of their own.

use std::{collections::BTreeSet, fs, os::unix::fs::MetadataExt};

use fixtures::{
    busybox::Images,
    image::{Entry, Layer},
    must::Must,
    netns::TestNetwork,
    wait::{all, eventually, seconds},
};
use kit::{node::Node, plugin::Plugin, task::Task};
use proto::{driver::fingerprint_response::HealthState, structs::attribute::Value};
use serde_json::json;

use crate::{
    layers::{forms, kernel, mounts_images},
    names::docker,
    own_network::{self, bridge},
    root_storage::Nested,
};

const IDLE: &str = "while :; do sleep 1000; done";
const FIRST: u32 = 1 << 30;

/// A user namespace for each task with this mode.
fn block(mode: &str) -> serde_json::Value {
    json!({"mode": mode, "first_id": FIRST, "ids": 16 * 65536})
}

/// Whether this node gives tasks user namespaces. Prints the reason of a skipped test. The directory `secrets` of each
/// task is a tmpfs, as Nomad makes it. What the plugin does on older kernels is tested there by
/// [`a_required_one_is_never_left_out`] and by the tests of all other modules.
#[allow(clippy::print_stdout, reason = "a skipped test says why")]
pub fn are_possible() -> bool {
    let (release, version) = kernel();
    let possible = version >= (6, 3);
    if !possible {
        println!("skipped: Linux {release} does not map the ids of a tmpfs");
    }
    possible
}

/// The uid of a task's process on the node.
fn uid(plugin: &Plugin, task: &Task) -> u32 {
    let status = fs::read_to_string(format!("/proc/{}/status", plugin.init_pid(task))).must("a status");
    let field = status.lines().find_map(|line| line.strip_prefix("Uid:")).must("Uid");
    field.split_whitespace().next().must("a uid").parse().must("a number")
}

#[tokio::test]
async fn a_task_has_one_or_says_why_not() {
    if !are_possible() {
        return;
    }
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
    if !are_possible() {
        return;
    }
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

/// In both forms of layers. Files of an image have the owners that they have on disk.
#[tokio::test]
async fn images_keep_their_owners() {
    if !are_possible() {
        return;
    }
    let (node, images) = (Node::new(), Images::start().await);
    let files = [Entry::dir("srv").owner(1000, 50), Entry::file("srv/app", "app").owner(1000, 50).mode(0o600)];
    let image = images.with_layers("owners", [Layer::of(files)]);
    let as_images = mounts_images(&node);
    for (format, expected) in [("directory", (2, 0)), ("auto", (0, 2))] {
        if format == "auto" && !as_images {
            continue;
        }
        let node = Node::new();
        let mut plugin = node.launch_with(json!({"userns": block("require"), "layer_format": format})).await;
        let task = node.task(&image).sh(IDLE).user("1000:50").build(&mut plugin).await;
        plugin.started(&task).await;
        assert_eq!(forms(&node), expected);
        let change = "cat /srv/app; stat -c ' %u:%g' /srv/app /etc/passwd; echo more >> /srv/app; cat /srv/app";
        assert_eq!(plugin.sh(&task, change).await, "app 1000:50\n 0:0\nappmore");
        plugin.end(&task).await;
        node.finish(plugin).await;
    }
}

/// Commands of exec are in the network, and every user may listen on port 80.
#[tokio::test]
async fn networks_of_the_node_work() {
    if !are_possible() {
        return;
    }
    let netns = TestNetwork::enter();
    let (node, images) = (Node::new(), Images::start().await);
    let mut options = bridge(json!({"group_networks": true}));
    options["userns"] = block("require");
    let mut plugin = node.launch_with(options).await;
    let alloc = node.alloc();
    let group = plugin.create_network(&alloc.id, "shop").await.must("CreateNetwork").isolation_spec.must("a network");
    let server = "nc -ll -p 80 -e echo hello";
    let own = node.task(&images.busybox()).sh(server).user("1000").build(&mut plugin).await;
    let grouped = node.task(&images.busybox()).in_alloc(&alloc).network(group).sh(server).user("1000");
    let grouped = grouped.build(&mut plugin).await;
    let look = "until nc 127.0.0.1 80 </dev/null 2>/dev/null; do usleep 10000; done; id -u; ls /sys/class/net";
    for (task, interfaces) in [(&own, "eth0\nlo"), (&grouped, "lo")] {
        plugin.started(task).await;
        assert!((FIRST..FIRST + 16 * 65536).contains(&uid(&plugin, task)));
        assert_eq!(plugin.sh(task, look).await, format!("hello\n1000\n{interfaces}"));
    }
    for task in [&own, &grouped] {
        plugin.end(task).await;
    }
    plugin.destroy_network(&alloc.id).await.must("DestroyNetwork");
    own_network::finish(netns, node, plugin).await;
}

/// The first attempt of a start that ends in the node's user namespace leaves the logs' reader.
#[tokio::test]
async fn logs_of_a_task_without_one_are_read() {
    let (node, images) = (Node::new(), Images::start().await);
    let mut plugin = node.launch_with(json!({"userns": block("auto"), "volumes": {"enabled": true}})).await;
    let script = "echo first; until [ -e /local/go ]; do usleep 10000; done; echo second; echo last >&2";
    let task = node.task(&images.busybox()).sh(script).user("1000").option("volumes", json!(["/proc/sys:/x"]));
    let task = task.build(&mut plugin).await;
    plugin.started(&task).await;
    assert_eq!(uid(&plugin, &task), 1000);
    fs::write(task.dir().join("local/go"), "").must("the file");
    assert_eq!(plugin.wait(task.id()).await.code, 0);
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    let output = [task.stdout().all(seconds(5)).await, task.stderr().all(seconds(5)).await];
    assert_eq!(output, ["first\nsecond\n", "last\n"]);
    node.finish(plugin).await;
}

/// Both names share the state directory, so they share the record of the ids.
#[tokio::test]
async fn two_names_never_give_the_same_ids() {
    if !are_possible() {
        return;
    }
    const EACH: usize = 5;
    let (node, images) = (Node::new(), Images::start().await);
    let mut plugins = [
        node.launch_with(json!({"userns": block("require")})).await,
        node.launch_as(docker(&node), json!({"userns": block("require")})).await,
    ];
    let mut tasks = Vec::new();
    for (index, plugin) in plugins.iter_mut().enumerate() {
        for _ in 0..EACH {
            tasks.push((index, node.task(&images.busybox()).sh(IDLE).build(plugin).await));
        }
    }
    let running = &plugins;
    all(tasks.iter().map(|(index, task)| async move { drop(running[*index].started(task).await) })).await;
    let ranges: BTreeSet<u32> = tasks.iter().map(|(index, task)| uid(&plugins[*index], task)).collect();
    assert_eq!(ranges.len(), 2 * EACH, "{ranges:?}");
    all(tasks.iter().map(|(index, task)| plugins[*index].end(task))).await;
    let [ours, mut dockers] = plugins;
    dockers.shutdown().await;
    node.finish(ours).await;
}
