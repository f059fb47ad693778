//! The network namespace of a task.

use std::{fs, path::Path};

use fixtures::{busybox::Images, must::Must, netns::in_namespace, wait::seconds};
use kit::node::Node;
use proto::driver::HostsConfig;
use rustix::net::{AddressFamily, SocketType, ipproto::ICMP, socket};
use serde_json::json;

fn namespace(path: &str) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    let metadata = fs::metadata(path).must("a namespace");
    (metadata.dev(), metadata.ino())
}

#[tokio::test]
async fn the_default_mode_host_uses_the_hosts_network() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh("while :; do sleep 1000; done").build(&mut plugin).await;
    plugin.started(&task).await;
    let init = plugin.init_pid(&task);
    assert_eq!(namespace(&format!("/proc/{init}/ns/net")), namespace("/proc/self/ns/net"));
    plugin.end(&task).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn the_task_joins_the_groups_network() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let alloc = node.alloc();
    let mut network = alloc.network();
    network.hosts_config = Some(HostsConfig { hostname: "group-host".into(), address: "172.26.64.9".into() });
    let idle = "while :; do sleep 1000; done";
    let web = node
        .task(&images.busybox())
        .in_alloc(&alloc)
        .name("web")
        .sh(idle)
        .network(network.clone())
        .build(&mut plugin)
        .await;
    let side = node
        .task(&images.busybox())
        .in_alloc(&alloc)
        .name("side")
        .sh(idle)
        .network(network.clone())
        .build(&mut plugin)
        .await;
    for task in [&web, &side] {
        plugin.started(task).await;
        let init = plugin.init_pid(task);
        assert_eq!(namespace(&format!("/proc/{init}/ns/net")), namespace(&network.path));
        assert_eq!(plugin.sh(task, "hostname").await, "group-host");
        assert!(plugin.sh(task, "grep 172.26.64.9 /etc/hosts").await.contains("group-host"));
    }
    // The tasks of the group reach each other by loopback. Other tasks do not reach them.
    plugin
        .exec(web.id(), &["/bin/sh", "-c", "nc -l -p 8123 -e echo hello >/dev/null 2>&1 &"], seconds(5))
        .await
        .must("ExecTask");
    let answer = plugin
        .sh(&side, "for i in $(seq 100); do nc 127.0.0.1 8123 </dev/null 2>/dev/null && break; sleep 0.1; done")
        .await;
    assert_eq!(answer, "hello");
    // After a task's end, the other task keeps the group's network.
    plugin.end(&web).await;
    plugin.sh(&side, "ip link show lo").await;
    plugin.end(&side).await;
    node.finish(plugin).await;
}

/// Docker's pause container gives a group's namespace these parameters. Images that run as another user rely on them.
#[tokio::test]
async fn every_user_listens_on_every_port_and_pings_in_a_groups_network() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let alloc = node.alloc();
    let network = alloc.network();
    let of_node = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").must("the node's parameter");
    let task = |name: &str| {
        let task = node.task(&images.busybox()).in_alloc(&alloc).name(name).user("1000:1000").network(network.clone());
        task.sh("nc -ll -p 80 -e echo hello")
    };
    let web = task("web").build(&mut plugin).await;
    plugin.started(&web).await;
    let ask = "for i in $(seq 100); do nc 127.0.0.1 80 </dev/null 2>/dev/null && break; sleep 0.1; done";
    assert_eq!(plugin.sh(&web, ask).await, "hello");
    // Read by this process: a container with a user namespace of its own has no such groups.
    let parameters = || {
        let read = |name: &str| fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).must(name);
        read("ip_unprivileged_port_start") + &read("ping_group_range")
    };
    assert_eq!(in_namespace(Path::new(&network.path), parameters), "0\n0\t2147483647\n");
    // The socket of ping needs the group of its process in the range, also for root.
    let ping = || socket(AddressFamily::INET, SocketType::DGRAM, Some(ICMP)).is_ok();
    assert!(in_namespace(Path::new(&network.path), ping));

    // The choice of a task is kept when another task of the group starts.
    let strict = task("strict").sh("while :; do sleep 1000; done");
    let strict = strict.option("sysctl", json!({ "net.ipv4.ip_unprivileged_port_start": "90" }));
    let strict = strict.build(&mut plugin).await;
    plugin.started(&strict).await;
    let side = task("side").sh("while :; do sleep 1000; done").build(&mut plugin).await;
    plugin.started(&side).await;
    assert_eq!(in_namespace(Path::new(&network.path), parameters), "90\n0\t2147483647\n");
    let after = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").must("the node's parameter");
    assert_eq!(after, of_node, "the node's own network is unchanged");
    for task in [&web, &strict, &side] {
        plugin.end(task).await;
    }
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_missing_group_network_fails_the_start() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let alloc = node.alloc();
    // The network is removed together with its name, and once only the empty file of the mount stays.
    let directory = node.temp_dir();
    fs::write(directory.join("unmounted"), "").must("a file");
    for (path, problem) in
        [("/run/netns/not-there".into(), "No such file"), (directory.join("unmounted"), "not a namespace")]
    {
        let mut network = alloc.network();
        network.path = path.to_string_lossy().into_owned();
        let task = node.task(&images.busybox()).in_alloc(&alloc).sh("true").network(network).build(&mut plugin).await;
        let status = plugin.start(&task).await.err().must("a refusal");
        let text = format!("the network namespace {path:?} is gone");
        assert!(status.message().contains(&text) && status.message().contains(problem), "{status}");
        assert!(node.traces().files.is_empty(), "{}", node.traces());
    }
    node.finish(plugin).await;
}

#[tokio::test]
async fn network_mode_none_has_only_loopback() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node
        .task(&images.busybox())
        .sh("while :; do sleep 1000; done")
        .option("network_mode", json!("none"))
        .build(&mut plugin)
        .await;
    plugin.started(&task).await;
    let init = plugin.init_pid(&task);
    assert_ne!(namespace(&format!("/proc/{init}/ns/net")), namespace("/proc/self/ns/net"));
    assert_eq!(plugin.sh(&task, "ls /sys/class/net 2>/dev/null | grep -v '^lo$' | grep -vc . || true").await, "0");
    assert_eq!(plugin.sh(&task, "cat /proc/sys/net/ipv4/ip_unprivileged_port_start").await, "0");
    plugin.end(&task).await;
    node.finish(plugin).await;
}
