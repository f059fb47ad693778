//! Network interfaces of the node that a device of the Container Device Interface moves to a task (`netDevices`). Each
//! test runs in a test network, so the machine's own interfaces stay where they are.

use std::{path::Path, process::Command};

use fixtures::{
    busybox::Images,
    must::Must,
    netns::{TestNetwork, cni_path},
    wait::{eventually, seconds},
};
use kit::{node::Node, plugin::Plugin};
use serde_json::{Value as Json, json};

use crate::cdi::{IDLE, Specs};

/// The interface on the node, and in the task.
const ON_NODE: &str = "fast-node";
const IN_TASK: &str = "fast0";

fn ip(args: &[&str]) -> String {
    let output = Command::new("ip").args(args).output().must("ip");
    assert!(output.status.success(), "ip {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Whether the node has an interface. The test's thread is in the node's network.
fn exists(name: &str) -> bool {
    Command::new("ip").args(["link", "show", name]).output().must("ip").status.success()
}

/// The state and the addresses of an interface of the node, without the address of the link.
fn state(name: &str) -> (bool, Vec<String>) {
    let text = ip(&["-oneline", "address", "show", "dev", name, "scope", "global"]);
    let addresses = text.lines().filter_map(|line| line.split_whitespace().nth(3).map(str::to_owned)).collect();
    let up =
        ip(&["link", "show", name]).split(['<', '>']).nth(1).is_some_and(|flags| flags.split(',').any(|f| f == "UP"));
    (up, addresses)
}

/// Makes an interface of the node: one end of a pair, with an address of each family, and on.
fn make_interface() {
    ip(&["link", "add", ON_NODE, "type", "veth", "peer", "name", "fast-peer"]);
    ip(&["link", "set", "fast-peer", "up"]);
    ip(&["address", "add", "198.51.100.7/24", "dev", ON_NODE]);
    ip(&["address", "add", "2001:db8:7::7/64", "dev", ON_NODE, "nodad"]);
    ip(&["link", "set", ON_NODE, "mtu", "1400", "up"]);
}

/// Removes the interface. The test network must have no leftovers.
async fn finish(netns: TestNetwork, node: Node, plugin: Plugin) {
    if exists(ON_NODE) {
        ip(&["link", "delete", ON_NODE]);
    }
    node.finish(plugin).await;
    assert_eq!(netns.leftovers(), Vec::<String>::new());
}

/// The state of the interface before and after a task.
fn on_node() -> (bool, Vec<String>) {
    (true, ["198.51.100.7/24", "2001:db8:7::7/64"].map(str::to_owned).to_vec())
}

/// A spec of the device `vendor.test/net=one`, which has the interface.
fn write_spec(specs: &Specs, host: &str, name: &str) {
    let edits = json!({"netDevices": [{"hostInterfaceName": host, "name": name}]});
    specs.write("net.json", "vendor.test/net", &json!({"one": edits}), &json!({}));
}

fn device() -> Json {
    json!([{"cdi": "vendor.test/net=one"}])
}

fn options(specs: &Specs) -> Json {
    let mut options = specs.options();
    options["network"] = json!({"cni_path": cni_path()});
    options["allow_caps"] = json!(["all"]);
    options
}

/// What the task sees of the interface.
const SCRIPT: &str = "ip -o addr show dev fast0 scope global | awk '{print $4}' | xargs; \
                      ip link show fast0 | grep -o 'mtu [0-9]*'; ip link show fast0 | grep -c '[<,]UP[,>]'";
const SEEN: &str = "198.51.100.7/24 2001:db8:7::7/64\nmtu 1400\n1";

#[tokio::test]
async fn an_interface_moves_to_the_task_and_comes_back_as_it_was() {
    let netns = TestNetwork::enter();
    let node = Node::new();
    let specs = Specs::of(&node);
    write_spec(&specs, ON_NODE, IN_TASK);
    let mut plugin = node.launch_with(options(&specs)).await;
    let images = Images::start().await;
    make_interface();
    for (mode, others) in [("bridge", "eth0 fast0 lo"), ("none", "fast0 lo"), ("bridge", "eth0 fast0 lo")] {
        let task = node.task(&images.busybox()).sh(IDLE).option("devices", device());
        let task = task.option("network_mode", json!(mode)).build(&mut plugin).await;
        let answer = plugin.start(&task).await.must("StartTask");
        assert_eq!(answer.network_override.is_some(), mode == "bridge", "a task without a network has no address");
        assert!(!exists(ON_NODE), "{mode}");
        assert_eq!(plugin.sh(&task, "ls /sys/class/net | xargs").await, others);
        assert_eq!(plugin.sh(&task, SCRIPT).await, SEEN, "{mode}");
        // The other end is on the node.
        let reached = ip(&["-oneline", "link", "show", "fast-peer"]);
        assert!(reached.contains("LOWER_UP"), "{reached}");
        plugin.end(&task).await;
        assert_eq!(state(ON_NODE), on_node(), "{mode}");
        assert!(ip(&["link", "show", ON_NODE]).contains("mtu 1400"));
    }
    // An interface that was off is off again.
    ip(&["link", "set", ON_NODE, "down"]);
    let task = node.task(&images.busybox()).sh(IDLE).option("devices", device());
    let task = task.option("network_mode", json!("none")).build(&mut plugin).await;
    plugin.started(&task).await;
    assert_eq!(plugin.sh(&task, "ip link show fast0 | grep -c '[<,]UP[,>]'").await, "1");
    plugin.end(&task).await;
    assert!(!state(ON_NODE).0);
    finish(netns, node, plugin).await;
}

#[tokio::test]
async fn an_interface_in_the_network_of_a_group_comes_back_with_its_task() {
    let netns = TestNetwork::enter();
    let node = Node::new();
    let specs = Specs::of(&node);
    write_spec(&specs, ON_NODE, IN_TASK);
    let mut plugin = node.launch_with(options(&specs)).await;
    let images = Images::start().await;
    make_interface();
    let alloc = node.alloc();
    let network = alloc.network();
    let (mut with, mut beside) = (None, None);
    for (name, devices, task) in [("with", device(), &mut with), ("beside", json!([]), &mut beside)] {
        let made = node.task(&images.busybox()).in_alloc(&alloc).name(name).sh(IDLE).option("devices", devices);
        let made = made.network(network.clone()).build(&mut plugin).await;
        plugin.started(&made).await;
        *task = Some(made);
    }
    let (with, beside) = (with.must("a task"), beside.must("a task"));
    // The tasks of a group share its network, so both see the interface.
    for task in [&with, &beside] {
        assert_eq!(plugin.sh(task, SCRIPT).await, SEEN);
    }
    plugin.end(&with).await;
    assert_eq!(state(ON_NODE), on_node());
    assert_eq!(plugin.sh(&beside, "ls /sys/class/net | grep -c fast || true").await, "0");
    plugin.end(&beside).await;

    // Nomad removes the group's network although the task was not destroyed: the kernel destroys a virtual interface.
    let with = with.restarted();
    plugin.started(&with).await;
    assert!(!exists(ON_NODE));
    plugin.stop(with.id(), seconds(0), "").await.must("StopTask");
    plugin.wait(with.id()).await;
    let namespace = Path::new(&network.path);
    ip(&["netns", "delete", namespace.file_name().and_then(|name| name.to_str()).must("its name")]);
    assert!(eventually(seconds(20), || !exists("fast-peer")).await, "the kernel destroys the pair");
    plugin.destroy(with.id(), true).await.must("DestroyTask");
    finish(netns, node, plugin).await;
}

#[tokio::test]
async fn an_interface_that_cannot_move_fails_the_start_and_the_error_says_why() {
    let netns = TestNetwork::enter();
    let node = Node::new();
    let specs = Specs::of(&node);
    let mut plugin = node.launch_with(options(&specs)).await;
    let images = Images::start().await;
    make_interface();
    for (host, name, mode, expected) in [
        (ON_NODE, IN_TASK, "host", "cannot move to the task: the task uses the host's network"),
        ("no-such0", IN_TASK, "bridge", "this node has no network interface no-such0"),
        (ON_NODE, "eth0", "bridge", "the task's network has an interface eth0 already"),
        ("lo", IN_TASK, "none", "the network interface lo, which the spec of a device names, cannot move to the task"),
        (ON_NODE, "a/b", "none", "\"a/b\" is not the name of a network interface"),
    ] {
        write_spec(&specs, host, name);
        let task = node.task(&images.busybox()).sh(IDLE).option("devices", device());
        let task = task.option("network_mode", json!(mode)).build(&mut plugin).await;
        let text = plugin.start(&task).await.err().must("a refusal").message().to_owned();
        assert!(text.contains(expected), "{text}\nis not: {expected}");
        assert_eq!(state(ON_NODE), on_node(), "{expected}");
        assert!(node.traces().mounts.is_empty(), "{}", node.traces());
    }
    // One task has it.
    write_spec(&specs, ON_NODE, IN_TASK);
    let mut tasks = Vec::new();
    for _ in 0..2 {
        let task = node.task(&images.busybox()).sh(IDLE).option("devices", device());
        tasks.push(task.option("network_mode", json!("none")).build(&mut plugin).await);
    }
    plugin.started(&tasks[0]).await;
    let text = plugin.start(&tasks[1]).await.err().must("a refusal").message().to_owned();
    assert!(text.contains("which the spec of a device names, is lent to another task ("), "{text}");
    assert_eq!(plugin.sh(&tasks[0], SCRIPT).await, SEEN);
    plugin.end(&tasks[0]).await;
    plugin.started(&tasks[1]).await;
    plugin.end(&tasks[1]).await;
    assert_eq!(state(ON_NODE), on_node());
    finish(netns, node, plugin).await;
}

#[tokio::test]
async fn an_interface_comes_back_after_kills_and_under_a_name_that_is_free() {
    let netns = TestNetwork::enter();
    let node = Node::new();
    let specs = Specs::of(&node);
    write_spec(&specs, ON_NODE, IN_TASK);
    let mut plugin = node.launch_with(options(&specs)).await;
    let images = Images::start().await;
    make_interface();
    let task = |mode: &str| {
        let task = node.task(&images.busybox()).sh(IDLE).option("devices", device());
        // The task renames the interface too.
        task.option("network_mode", json!(mode)).option("cap_add", json!(["net_admin"]))
    };
    for mode in ["none", "bridge"] {
        let task = task(mode).build(&mut plugin).await;
        let handle = plugin.started(&task).await;
        plugin.sh(&task, "ip link set fast0 down; ip link set fast0 name other0").await;
        plugin.kill_monitor(&task);
        plugin.process.kill().await;
        plugin = node.launch_with(options(&specs)).await;
        plugin.recover(&handle).await.must("RecoverTask");
        plugin.end(&task).await;
        assert_eq!(state(ON_NODE), on_node(), "{mode}");
    }
    // Meanwhile the node got another interface of this name.
    let task = task("none").build(&mut plugin).await;
    plugin.started(&task).await;
    ip(&["link", "add", ON_NODE, "type", "veth", "peer", "name", "other-peer"]);
    plugin.end(&task).await;
    let peer = ip(&["-oneline", "link", "show", "fast-peer"]);
    assert!(peer.contains("fast-peer@dev0:"), "{peer}");
    plugin.process.stderr.find(seconds(10), "the warning", |line| line.contains("came back as dev%d")).await;
    ip(&["link", "delete", "dev0"]);
    finish(netns, node, plugin).await;
}
