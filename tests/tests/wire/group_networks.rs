//! CreateNetwork and DestroyNetwork: the driver makes the network of a group, which Nomad then connects.

use std::{fs, os::unix::fs::MetadataExt, path::PathBuf};

use fixtures::{
    busybox::Images,
    must::Must,
    wait::{eventually, seconds},
};
use kit::{
    node::Node,
    plugin::{Plugin, PluginCommand},
};
use proto::driver::{
    CreateNetworkResponse, HostsConfig, NetworkIsolationSpec, network_isolation_spec::NetworkIsolationMode,
};
use serde_json::{Value as Json, json};
use tonic::Code;

use crate::names::docker;

/// The options of a driver that makes the networks of groups, and looks soon for those that no group uses.
fn options() -> Json {
    json!({"network": {"default_mode": "host", "group_networks": true},
           "gc": {"dangling_containers": {"period": "300ms", "creation_grace": "300ms"}}})
}

async fn create(plugin: &Plugin, alloc: &str, hostname: &str) -> CreateNetworkResponse {
    plugin.create_network(alloc, hostname).await.must("CreateNetwork")
}

fn spec(answer: &CreateNetworkResponse) -> NetworkIsolationSpec {
    let spec = answer.isolation_spec.clone().must("a network");
    assert_eq!(spec.mode(), NetworkIsolationMode::Group);
    spec
}

/// The namespaces and records of the node's groups.
fn left(node: &Node) -> Vec<PathBuf> {
    let traces = node.traces();
    [traces.namespaces, traces.files].concat()
}

fn inode(path: &str) -> u64 {
    fs::metadata(path).must("the pinned namespace").ino()
}

#[tokio::test]
async fn a_group_gets_a_network_with_its_host_name() {
    let node = Node::new();
    let mut plugin = node.launch_with(options()).await;
    assert!(plugin.capabilities().await.must_create_network);
    let alloc = node.alloc();
    let created = create(&plugin, &alloc.id, "shop.example").await;
    let mut network = spec(&created);
    assert!(created.created, "Nomad has yet to connect it");
    // Nomad itself would pin it there too, and so the option can be changed while groups run.
    assert_eq!(network.path, format!("/var/run/netns/{}", alloc.id));
    assert_eq!(network.labels.get("docker_sandbox_hostname").map(String::as_str), Some("shop.example"));

    // The agent asks again after its restart, also a new plugin.
    let namespace = inode(&network.path);
    plugin.process.kill().await;
    let mut plugin = node.launch_with(options()).await;
    assert_eq!(create(&plugin, &alloc.id, "shop.example").await, created);
    assert_eq!(inode(&network.path), namespace);

    // What Nomad makes of the label.
    network.hosts_config = Some(HostsConfig { hostname: "shop.example".into(), address: "192.0.2.7".into() });
    let images = Images::start().await;
    let script = "hostname; grep 192.0.2.7 /etc/hosts; readlink /proc/self/ns/net; nc -l -p 80 -w 1; true";
    let task = node.task(&images.busybox()).in_alloc(&alloc).sh(script).user("1000").network(network.clone());
    let task = task.build(&mut plugin).await;
    plugin.started(&task).await;
    assert_eq!(plugin.wait(task.id()).await.code, 0);
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    let expected = format!("shop.example\n192.0.2.7\tshop.example shop\nnet:[{namespace}]");
    assert_eq!(task.stdout().all(seconds(5)).await.trim_end(), expected);

    // A group without a host name gets one from the id, as with docker's pause container.
    let other = node.alloc();
    let label = spec(&create(&plugin, &other.id, "").await).labels.remove("docker_sandbox_container_id");
    assert_eq!(label, Some(other.id.replace('-', "")));
    for alloc in [&alloc.id, &other.id, &other.id] {
        plugin.destroy_network(alloc).await.must("DestroyNetwork");
    }
    assert_eq!(left(&node), Vec::<PathBuf>::new());
    for alloc in ["", "../x"] {
        assert_eq!(plugin.create_network(alloc, "").await.err().must("a refusal").code(), Code::InvalidArgument);
        assert_eq!(plugin.destroy_network(alloc).await.err().must("a refusal").code(), Code::InvalidArgument);
    }
    node.finish(plugin).await;
}

/// The agent's call for the removal was lost with the plugin, or the agent itself.
#[tokio::test]
async fn a_network_that_no_group_uses_is_removed() {
    let node = Node::new();
    let plugin = node.launch_with(options()).await;
    let (left, kept) = (node.alloc(), node.alloc());
    let lost = spec(&create(&plugin, &left.id, "").await).path;
    drop(plugin);
    let mut plugin = node.launch_with(options()).await;
    let asked = spec(&create(&plugin, &kept.id, "").await);
    assert!(eventually(seconds(20), || !PathBuf::from(&lost).exists()).await, "it is swept");
    assert!(PathBuf::from(&asked.path).exists(), "this process was asked for it");

    // A group without a connection whose tasks wait for their restart: the next start makes the network again.
    let images = Images::start().await;
    let network = NetworkIsolationSpec { path: lost.clone(), ..asked };
    let task = node.task(&images.busybox()).in_alloc(&left).sh("ls /sys/class/net").network(network);
    let task = task.build(&mut plugin).await;
    plugin.started(&task).await;
    assert_eq!(plugin.wait(task.id()).await.code, 0);
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    assert_eq!(task.stdout().all(seconds(5)).await, "lo\n");
    for alloc in [&left.id, &kept.id] {
        plugin.destroy_network(alloc).await.must("DestroyNetwork");
    }
    node.finish(plugin).await;
}

/// Drivers of both names share the records, and only one of them was asked for the network.
#[tokio::test]
async fn a_network_that_the_other_name_swept_is_made_again() {
    let node = Node::new();
    let mut plugin = node.launch_with(json!({"network": {"group_networks": true}})).await;
    let alloc = node.alloc();
    let mut network = spec(&create(&plugin, &alloc.id, "").await);
    let mut other = node.launch_as(docker(&node), options()).await;
    assert!(eventually(seconds(20), || !PathBuf::from(&network.path).exists()).await, "it is swept");
    // What Nomad makes of the label in a group without a connection.
    network.hosts_config = Some(HostsConfig { hostname: "shop".into(), address: String::new() });
    let images = Images::start().await;
    let task = node.task(&images.busybox()).in_alloc(&alloc).sh("ls /sys/class/net").network(network);
    let task = task.build(&mut plugin).await;
    plugin.started(&task).await;
    assert_eq!(plugin.wait(task.id()).await.code, 0);
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    assert_eq!(task.stdout().all(seconds(5)).await, "lo\n");
    plugin.destroy_network(&alloc.id).await.must("DestroyNetwork");
    other.shutdown().await;
    node.finish(plugin).await;
}

/// The plugin is killed at each step. Afterwards the agent repeats its call, or makes no further call.
#[tokio::test]
async fn a_kill_at_any_step_leaves_nothing() {
    let points = ["group-before-namespace", "group-before-answer", "group-before-unpin", "group-before-record"];
    for (point, repeated) in points.into_iter().flat_map(|point| [(point, true), (point, false)]) {
        let node = Node::new();
        let alloc = node.alloc();
        let armed = PluginCommand::new(node.root()).env("OCI_RS_FAILPOINT", point);
        let mut plugin = node.launch_as(armed, options()).await;
        let created = plugin.create_network(&alloc.id, "").await;
        let removal = point.contains("unpin") || point.contains("record");
        assert_eq!(created.is_ok(), removal, "{point}");
        if removal {
            plugin.destroy_network(&alloc.id).await.err().must("the plugin's end");
        }
        plugin.process.kill().await;
        let plugin = node.launch_with(options()).await;
        if repeated && !removal {
            assert!(create(&plugin, &alloc.id, "").await.created, "{point}");
        }
        if repeated {
            plugin.destroy_network(&alloc.id).await.must("DestroyNetwork");
            assert_eq!(left(&node), Vec::<PathBuf>::new(), "{point}");
        }
        assert!(eventually(seconds(20), || left(&node).is_empty()).await, "{point}: {:?}", left(&node));
        node.finish(plugin).await;
    }
}
