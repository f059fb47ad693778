//! Host name, /etc/hosts and /etc/resolv.conf, which the driver makes.

use std::{collections::BTreeSet, process::Command};

use fixtures::{busybox::Images, must::Must, wait::seconds};
use kit::node::Node;
use serde_json::json;

fn entries(text: &str, key: &str) -> BTreeSet<String> {
    let lines = text.lines().filter_map(|line| line.trim().strip_prefix(key));
    lines.flat_map(str::split_whitespace).map(str::to_owned).collect()
}

fn set(words: &[&str]) -> BTreeSet<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[tokio::test]
async fn only_the_groups_dns_is_used() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node
        .task(&images.busybox())
        .sh("cat /etc/resolv.conf")
        .dns(&["8.8.8.8", "8.8.4.4"], &[".consul", "example.org"], &["ndots:2", "edns0"])
        .build(&mut plugin)
        .await;
    plugin.started(&task).await;
    plugin.wait(task.id()).await;
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    let text = task.stdout().all(seconds(5)).await;
    assert_eq!(entries(&text, "nameserver"), set(&["8.8.8.8", "8.8.4.4"]), "{text}");
    assert_eq!(entries(&text, "search"), set(&[".consul", "example.org"]), "{text}");
    assert_eq!(entries(&text, "options"), set(&["ndots:2", "edns0"]), "{text}");
    node.finish(plugin).await;
}

#[tokio::test]
async fn without_a_dns_block_the_hosts_dns_is_used() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh("cat /etc/resolv.conf").build(&mut plugin).await;
    plugin.started(&task).await;
    plugin.wait(task.id()).await;
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    let text = task.stdout().all(seconds(5)).await;
    let mut host = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    if entries(&host, "nameserver") == set(&["127.0.0.53"]) {
        host = std::fs::read_to_string("/run/systemd/resolve/resolv.conf").unwrap_or(host);
    }
    assert_eq!(entries(&text, "nameserver"), entries(&host, "nameserver"), "{text}");
    node.finish(plugin).await;
}

#[tokio::test]
async fn hosts_file_and_host_name_are_set() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node
        .task(&images.busybox())
        .sh("cat /etc/hosts; echo ---; hostname; echo ---; cat /etc/hostname")
        .option("hostname", json!("web-1"))
        .option("extra_hosts", json!(["db:10.1.2.3", "six:[fd00::6]"]))
        .build(&mut plugin)
        .await;
    plugin.started(&task).await;
    plugin.wait(task.id()).await;
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    let text = task.stdout().all(seconds(5)).await;
    let [hosts, hostname, file] = text.split("---\n").collect::<Vec<_>>()[..] else { panic!("{text}") };
    let line = |address: &str, name: &str| {
        hosts.lines().any(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.first() == Some(&address) && words[1..].contains(&name)
        })
    };
    for (address, name) in [("127.0.0.1", "localhost"), ("::1", "localhost"), ("10.1.2.3", "db"), ("fd00::6", "six")] {
        assert!(line(address, name), "{address} {name} in {hosts}");
    }
    assert_eq!((hostname.trim(), file.trim()), ("web-1", "web-1"));
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_task_on_the_hosts_network_has_the_nodes_names() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let hosts = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").must("the node's name");
    let script = "hostname; cat /etc/hostname; echo $HOSTNAME; hostname changed 2>/dev/null; cat /etc/hosts";
    let task = node.task(&images.busybox()).sh(script).option("network_mode", json!("host"));
    let task = task.build(&mut plugin).await;
    plugin.started(&task).await;
    plugin.wait(task.id()).await;
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    assert_eq!(task.stdout().all(seconds(5)).await, format!("{}{hosts}", name.repeat(3)));
    let after = std::fs::read_to_string("/proc/sys/kernel/hostname").must("the node's name");
    assert_eq!(after, name);

    let named = node.task(&images.busybox()).sh("cat /etc/hosts; hostname");
    let named = named.option("network_mode", json!("none")).option("hostname", json!("foo.bar.example"));
    let named = named.build(&mut plugin).await;
    plugin.started(&named).await;
    plugin.wait(named.id()).await;
    plugin.destroy(named.id(), true).await.must("DestroyTask");
    let text = named.stdout().all(seconds(5)).await;
    assert!(text.ends_with("127.0.1.1\tfoo.bar.example foo\nfoo.bar.example\n"), "{text}");
    node.finish(plugin).await;
}

/// Nomad says the address of a group only with a port.
#[tokio::test]
async fn the_own_name_is_the_address_of_the_group() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let alloc = node.alloc();
    let network = alloc.network();
    let task = |name: &str| {
        let task = node.task(&images.busybox()).in_alloc(&alloc).name(name).network(network.clone());
        task.option("hostname", json!("web")).sh("grep web /etc/hosts; ip link show lo | grep -q LOOPBACK,UP")
    };
    for (name, command, hosts) in [
        // As Nomad makes the namespace of a group without a network.
        ("none", "link set lo down", "127.0.1.1\tweb\n"),
        ("six", "address add fd00::77/128 dev lo && ip -6 route add default dev lo", "fd00::77\tweb\n"),
        ("four", "address add 10.99.0.7/32 dev lo && ip route add default dev lo", "10.99.0.7\tweb\n"),
    ] {
        let script = format!("ip {command}");
        let done = Command::new("ip").args(["netns", "exec", &alloc.id, "sh", "-c", &script]).output().must("ip");
        assert!(done.status.success(), "{done:?}");
        let task = task(name).build(&mut plugin).await;
        plugin.started(&task).await;
        assert_eq!(plugin.wait(task.id()).await.code, 0, "{}", task.stderr().so_far());
        plugin.destroy(task.id(), true).await.must("DestroyTask");
        assert_eq!(task.stdout().all(seconds(5)).await, hosts);
    }
    node.finish(plugin).await;
}

/// These files belong to the container: a write changes no file of the host or of the image.
#[tokio::test]
async fn the_files_are_writable_and_private() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let host = std::fs::read("/etc/hosts").unwrap_or_default();
    let task =
        node.task(&images.busybox()).sh("echo 1.2.3.4 mine >> /etc/hosts && cat /etc/hosts").build(&mut plugin).await;
    let mut task = task;
    for _ in 0..2 {
        plugin.started(&task).await;
        assert_eq!(plugin.wait(task.id()).await.code, 0);
        plugin.destroy(task.id(), true).await.must("DestroyTask");
        let text = task.stdout().all(seconds(5)).await;
        assert_eq!(text.matches("mine").count(), 1, "{text}");
        task = task.restarted();
    }
    assert_eq!(std::fs::read("/etc/hosts").unwrap_or_default(), host);
    node.finish(plugin).await;
}
