//! Failures of a task's own network: nodes without CNI plugins, failing plugins, and kills during the setup.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use fixtures::{
    busybox::Images,
    must::Must,
    netns::{TestNetwork, cni_path},
    wait::{eventually, seconds},
};
use kit::{calls::recoverable, node::Node, plugin::PluginCommand};
use rustix::fs::{CWD, Mode, mkfifoat};
use serde_json::{Value as Json, json};

use super::own_network::{IDLE, bridge, finish};

#[tokio::test]
async fn leftovers_of_a_killed_start_are_removed() {
    let netns = TestNetwork::enter();
    let node = Node::new();
    let launch = PluginCommand::new(node.root()).env("OCI_RS_FAILPOINT", "start-before-plan");
    let mut plugin = node.launch_as(launch, bridge(json!({}))).await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh(IDLE).port("http", "192.0.2.1", 20080, 80).build(&mut plugin).await;
    plugin.start(&task).await.err().must("no answer");
    assert!(!netns.leftovers().is_empty(), "the network was made");
    plugin.process.kill().await;
    let plugin = node.launch_with(bridge(json!({}))).await;
    assert!(eventually(seconds(20), || netns.leftovers().is_empty() && node.traces().files.is_empty()).await);
    finish(netns, node, plugin).await;
}

/// A CNI network of the operator, `cni/lan`: a bridge and the rules of its containers. Returns the options of the
/// plugin block.
fn lan(node: &Node, cni_path: &str) -> Json {
    let directory = node.root().join("cni");
    fs::create_dir_all(&directory).must("a directory");
    let network = json!({"cniVersion": "1.0.0", "name": "lan", "plugins": [
        {"type": "bridge", "bridge": "lan0", "isGateway": true,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.79.0.0/24"}]],
                "dataDir": node.state_dir().join("addresses")}},
        {"type": "firewall", "backend": "iptables"},
    ]});
    fs::write(directory.join("lan.conflist"), network.to_string()).must("a network");
    bridge(json!({"cni_path": cni_path, "cni_config_dir": directory}))
}

#[tokio::test]
async fn other_networks_work_without_cni_plugins() {
    let netns = TestNetwork::enter();
    let node = Node::new();
    let mut plugin = node.launch_with(lan(&node, &node.root().to_string_lossy())).await;
    let fingerprint = plugin.streams.fingerprint().await;
    let attribute = &fingerprint.attributes["driver.oci-rs.network.bridge"];
    assert_eq!(attribute.value, Some(proto::structs::attribute::Value::BoolVal(true)));
    let images = Images::start().await;
    let image = images.busybox();
    let task = node.task(&image).sh(IDLE).option("network_mode", json!("cni/lan")).build(&mut plugin).await;
    let status = plugin.start(&task).await.err().must("a refusal");
    for part in ["CNI network lan", "CNI plugin bridge", "CNI plugin host-local", "containernetworking-plugins"] {
        assert!(status.message().contains(part), "{part} in {status}");
    }
    assert!(!recoverable(&status), "nothing here changes by itself: another node may have them");
    for mode in ["host", "none", "bridge"] {
        let task = node.task(&image).sh(IDLE).option("network_mode", json!(mode)).build(&mut plugin).await;
        let network = plugin.start(&task).await.must("StartTask").network_override;
        assert_eq!(network.is_some(), mode == "bridge", "{mode}: {network:?}");
        plugin.end(&task).await;
    }
    finish(netns, node, plugin).await;
}

#[tokio::test]
async fn a_failing_cni_plugin_leaves_nothing() {
    let netns = TestNetwork::enter();
    let node = Node::new();
    // The real CNI plugins, with one failing plugin before them.
    let directory = node.root().join("bin");
    fs::create_dir(&directory).must("a directory");
    let script =
        "#!/bin/sh\n[ $CNI_COMMAND = DEL ] && exit 0\necho '{\"code\": 11, \"msg\": \"no luck today\"}'; exit 1\n";
    fs::write(directory.join("firewall"), script).must("a plugin");
    let mode = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
    fs::set_permissions(directory.join("firewall"), mode).must("its mode");
    let path = format!("{}:{}", directory.display(), cni_path());
    let mut plugin = node.launch_with(lan(&node, &path)).await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh(IDLE).option("network_mode", json!("cni/lan"));
    let task = task.build(&mut plugin).await;
    let status = plugin.start(&task).await.err().must("a refusal");
    assert!(status.message().contains("network lan: firewall failed (ADD): no luck today"), "{status}");
    assert!(recoverable(&status), "{status}");
    assert!(node.traces().files.is_empty(), "{}", node.traces());
    assert_eq!(netns.leftovers(), Vec::<String>::new());
    finish(netns, node, plugin).await;
}

/// The real bridge plugin behind a gate: a test opens the gate for one call. The directory comes first in this
/// `cni_path`.
pub struct Gated {
    /// The `cni_path`.
    pub path: String,
    gate: PathBuf,
    begun: PathBuf,
}

impl Gated {
    /// A closed gate.
    pub fn new(node: &Node) -> Self {
        let directory = node.root().join("bin");
        fs::create_dir(&directory).must("a directory");
        let (gate, begun) = (node.root().join("gate"), node.root().join("begun"));
        mkfifoat(CWD, &gate, Mode::from_raw_mode(0o600)).must("a FIFO");
        let wait = format!("[ $CNI_COMMAND = ADD ] && : >>{} && read go <{}", begun.display(), gate.display());
        program(&directory.join("bridge"), &format!("{wait}\nexec {}/bridge\n", cni_path()));
        Self { path: format!("{}:{}", directory.display(), cni_path()), gate, begun }
    }

    /// Waits until the CNI plugin has been called.
    pub async fn called(&self) {
        assert!(eventually(seconds(20), || self.begun.exists()).await, "the CNI plugin was called");
    }

    /// Opens the gate for one call.
    pub fn open(&self) {
        fs::write(&self.gate, "go\n").must("let it go on");
    }
}

/// Writes an executable shell script.
fn program(path: &Path, script: &str) {
    fs::write(path, format!("#!/bin/sh\n{script}")).must("a program");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).must("its mode");
}

#[tokio::test]
async fn a_cni_plugin_that_outlives_the_driver_is_awaited() {
    let netns = TestNetwork::enter();
    let node = Node::new();
    let gated = Gated::new(&node);
    let slow = lan(&node, &gated.path);
    let mut plugin = node.launch_with(slow.clone()).await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh(IDLE).option("network_mode", json!("cni/lan"));
    let task = task.build(&mut plugin).await;
    tokio::select! {
        answer = plugin.start(&task) => panic!("{answer:?}"),
        () = gated.called() => {}
    }
    plugin.process.kill().await;
    let plugin = node.launch_with(slow).await;
    // The sweep must wait for the plugin that still runs, because that plugin would complete the network afterwards.
    let swept = eventually(Duration::from_millis(300), || node.traces().files.is_empty()).await;
    assert!(!swept, "the record of the network stays until it can be taken down");
    gated.open();
    assert!(eventually(seconds(20), || node.traces().files.is_empty()).await, "{}", node.traces());
    finish(netns, node, plugin).await;
}

#[tokio::test]
async fn a_stop_during_network_setup_ends_the_start() {
    let netns = TestNetwork::enter();
    let node = Node::new();
    let gated = Gated::new(&node);
    let trace = node.root().join("trace");
    let launch = PluginCommand::new(node.root()).env("OCI_RS_FAILPOINT_TRACE", &trace.to_string_lossy());
    let mut plugin = node.launch_as(launch, lan(&node, &gated.path)).await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh(IDLE).option("network_mode", json!("cni/lan"));
    let task = task.build(&mut plugin).await;
    let (status, (), ()) = tokio::join!(
        async { plugin.start(&task).await.err().must("a start that was given up") },
        async {
            gated.called().await;
            plugin.stop(task.id(), Duration::ZERO, "").await.must("StopTask");
        },
        async {
            let told = || fs::read_to_string(&trace).is_ok_and(|trace| trace.contains("owner-before-cancel"));
            assert!(eventually(seconds(20), told).await, "the stop has arrived");
            gated.open();
        },
    );
    assert!(status.message().contains("stopped while it was starting"), "{status}");
    assert!(node.traces().files.is_empty(), "{}", node.traces());
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    finish(netns, node, plugin).await;
}
