//! The name of the driver follows its file: as `docker` it stands in for Nomad's docker driver, also beside `oci-rs`.

use std::{fs, os::unix::fs::symlink, path::PathBuf};

use fixtures::{
    busybox::Images,
    must::Must,
    netns::TestNetwork,
    wait::{eventually, seconds},
};
use kit::{
    hcl,
    node::Node,
    plugin::{Plugin, PluginCommand, binary},
    task::Task,
};
use proto::{
    base::{ConfigSchemaRequest, PluginInfoRequest},
    driver::{TaskHandle, fingerprint_response::HealthState},
    structs::attribute::Value,
};
use serde_json::json;

use crate::{
    own_network::{IDLE, bridge, finish},
    own_network_failures::Gated,
};

/// The plugin under the name `docker`: a link to the binary.
pub fn docker(node: &Node) -> PluginCommand {
    let link = node.root().join("docker");
    if !link.exists() {
        symlink(binary(), &link).must("a link to the binary");
    }
    PluginCommand::new(node.root()).binary(&link)
}

#[tokio::test]
async fn a_link_named_docker_is_the_docker_driver() {
    let node = Node::new();
    let plugin = node.launch_as(docker(&node), json!({"docker_version": "27.3.1"})).await;
    let info = plugin.base().plugin_info(PluginInfoRequest {}).await.must("PluginInfo").into_inner();
    assert_eq!(info.name, "docker");
    assert!(plugin.capabilities().await.must_create_network, "for groups with a host name");
    // Nomad's internal driver has 0.1.0, and a lower version would lose against it.
    assert!(info.plugin_version.starts_with("1.0.0+oci-rs."), "{}", info.plugin_version);
    let schema = plugin.base().config_schema(ConfigSchemaRequest {}).await.must("ConfigSchema").into_inner().spec;
    assert_eq!(hcl::schema_faults(&schema.must("a schema")), Vec::<String>::new());

    let fingerprint = plugin.streams.fingerprint().await;
    assert_eq!(fingerprint.health(), HealthState::Healthy, "{}", fingerprint.health_description);
    let attribute = |name: &str| fingerprint.attributes.get(name).and_then(|attribute| attribute.value.clone());
    let text = |value: &str| Some(Value::StringVal(value.to_owned()));
    assert_eq!(attribute("driver.docker"), Some(Value::BoolVal(true)));
    assert_eq!(attribute("driver.docker.version"), text("27.3.1"));
    assert_eq!(attribute("driver.docker.os_type"), text("linux"));
    assert!(attribute("driver.docker.oci_rs_version").is_some() && attribute("driver.docker.runtimes").is_some());
    assert!(fingerprint.attributes.keys().all(|name| name.starts_with("driver.docker")), "{fingerprint:?}");
    assert!(node.data_dir().join("docker.log").exists(), "the log has the driver's name");
    node.finish(plugin).await;
}

/// The block of a docker node, with all options that docker's driver has.
#[tokio::test]
async fn dockers_plugin_block_is_accepted_whole_and_its_rules_apply() {
    let node = Node::new();
    let block = json!({
        "endpoint": "unix:///var/run/docker.sock",
        "tls": {"cert": "/c.pem", "key": "/k.pem", "ca": "/ca.pem"},
        "extra_labels": ["job_name"],
        "logging": {"type": "json-file", "config": {"max-file": "2", "max-size": "2m"}},
        "gc": {"image": true, "image_delay": "3m", "container": true,
               "dangling_containers": {"enabled": true, "period": "5m", "creation_grace": "5m", "dry_run": false}},
        "volumes": {"enabled": true, "selinuxlabel": "z"},
        "allow_privileged": false, "allow_caps": ["all"], "nvidia_runtime": "nvidia",
        "allow_runtimes": ["runc", "nvidia"], "infra_image": "registry.k8s.io/pause-amd64:3.3",
        "infra_image_pull_timeout": "5m", "image_pull_timeout": "5m", "container_exists_attempts": 5,
        "oom_score_adj": 0, "pull_activity_timeout": "2m", "pids_limit": 1000, "disable_log_collection": false,
        "windows_allow_insecure_container_admin": false,
    });
    let mut plugin = node.launch_as(docker(&node), block).await;
    assert!(!plugin.capabilities().await.disable_log_collection);
    let images = Images::start().await;
    let script = "grep NoNewPrivs /proc/self/status; [ $(ls /proc | grep -c '^[0-9]') -gt 9 ] && echo sees the host";
    let options = [("pid_mode", json!("host")), ("security_opt", json!(["seccomp=unconfined"]))];
    let task = node.task(&images.busybox()).sh(&format!("{script}; cat /log/docker.log"));
    let task = task.option("volumes", json!([format!("{}:/log:ro", node.data_dir().display())]));
    let task = options.into_iter().fold(task, |task, (name, value)| task.option(name, value));
    let task = task.build(&mut plugin).await;
    plugin.started(&task).await;
    assert_eq!(plugin.wait(task.id()).await.code, 0);
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    let output = task.stdout().all(seconds(5)).await;
    assert!(output.starts_with("NoNewPrivs:\t0\nsees the host\n"), "{output}");
    for option in ["tls", "nvidia_runtime", "infra_image", "container_exists_attempts"] {
        let line = format!("{option} in the plugin block has no effect here");
        assert_eq!(output.matches(&line).count(), 1, "{option}: {output}");
    }
    node.finish(plugin).await;

    let node = Node::new();
    let mut plugin = node.launch_as(docker(&node), json!({"strict": true})).await;
    let task = node.task(&images.busybox()).sh("true").option("pid_mode", json!("host")).build(&mut plugin).await;
    let status = plugin.start(&task).await.err().must("a refusal");
    assert!(status.message().contains("\"host\" is not allowed on this node"), "{status}");
    node.finish(plugin).await;
}

#[tokio::test]
async fn the_operator_may_switch_the_collection_of_output_off() {
    let node = Node::new();
    let mut plugin = node.launch_as(docker(&node), json!({"disable_log_collection": true})).await;
    assert!(plugin.capabilities().await.disable_log_collection);
    let images = Images::start().await;
    // Nomad then makes no FIFOs.
    let task =
        node.task(&images.busybox()).sh("stat -L -c %t:%T /proc/self/fd/2 >/local/device").build(&mut plugin).await;
    fs::remove_file(&task.config.stdout_path).must("remove the FIFO");
    fs::remove_file(&task.config.stderr_path).must("remove the FIFO");
    plugin.started(&task).await;
    assert_eq!(plugin.wait(task.id()).await.code, 0);
    assert_eq!(fs::read_to_string(task.dir().join("local/device")).must("the device"), "1:3\n", "/dev/null");
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

/// The container's directory in the state directory.
fn container(node: &Node, handle: &TaskHandle) -> PathBuf {
    let state: serde_json::Value = serde_json::from_slice(&handle.driver_state).must("a handle");
    node.state_dir().join("tasks").join(state["container"].as_str().must("a container"))
}

/// Starts a task that runs until it is stopped.
async fn idle(node: &Node, plugin: &mut Plugin, image: &str) -> (Task, TaskHandle) {
    let task = node.task(image).sh(IDLE).build(plugin).await;
    let handle = plugin.started(&task).await;
    (task, handle)
}

/// Both names share all directories. A plugin that starts anew removes the container of its own name that no task
/// claims, and none of the other name.
#[tokio::test]
async fn two_names_share_their_directories() {
    let node = Node::new();
    let images = Images::start().await;
    let image = images.busybox();
    let hasty = json!({"gc": {"dangling_containers":
        {"period": "300ms", "creation_grace": "300ms", "unanswered_grace": "300ms"}}});
    let mut ours = node.launch_with(hasty.clone()).await;
    let mut dockers = node.launch_as(docker(&node), hasty.clone()).await;
    for restart_docker in [true, false] {
        let (own, own_handle) = idle(&node, &mut ours, &image).await;
        let (other, other_handle) = idle(&node, &mut dockers, &image).await;
        let restarted = if restart_docker { &mut dockers } else { &mut ours };
        let (_lost, lost_handle) = idle(&node, restarted, &image).await;
        restarted.process.kill().await;
        let (command, handle) = match restart_docker {
            true => (docker(&node), &other_handle),
            false => (PluginCommand::new(node.root()), &own_handle),
        };
        *restarted = node.launch_as(command, hasty.clone()).await;
        restarted.recover(handle).await.must("RecoverTask");
        let lost = container(&node, &lost_handle);
        assert!(eventually(seconds(20), || !lost.exists()).await, "the dangling container is removed");
        for (plugin, task, handle) in [(&ours, &own, &own_handle), (&dockers, &other, &other_handle)] {
            assert!(container(&node, handle).exists());
            assert_eq!(plugin.sh(task, "echo lives").await, "lives");
            plugin.destroy(task.id(), true).await.must("DestroyTask");
        }
    }
    dockers.shutdown().await;
    node.finish(ours).await;
}

/// The first sweep of a plugin runs while the other one starts a task, which has an image and a network but no
/// container yet.
#[tokio::test]
async fn a_new_plugin_leaves_the_start_of_the_other_name_alone() {
    let netns = TestNetwork::enter();
    let node = Node::new();
    let gated = Gated::new(&node);
    let directory = node.root().join("cni");
    fs::create_dir(&directory).must("a directory");
    let ipam = json!({"type": "host-local", "ranges": [[{"subnet": "10.78.0.0/24"}]],
        "dataDir": node.state_dir().join("addresses")});
    let lan = json!({"cniVersion": "1.0.0", "name": "lan",
        "plugins": [{"type": "bridge", "bridge": "lan0", "isGateway": true, "ipam": ipam}]});
    fs::write(directory.join("lan.conflist"), lan.to_string()).must("a network");
    let slow = bridge(json!({"cni_path": gated.path, "cni_config_dir": directory}));
    let mut ours = node.launch_with(slow).await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh(IDLE).option("network_mode", json!("cni/lan"));
    let task = task.build(&mut ours).await;
    let starting = tokio::join!(ours.start(&task), async {
        gated.called().await;
        let mut dockers = node.launch_as(docker(&node), bridge(json!({}))).await;
        let swept = || dockers.process.stderr.so_far().iter().any(|line| line.contains("leftovers swept"));
        assert!(eventually(seconds(20), swept).await);
        let leases = fs::read_dir(node.data_dir().join("images/leases")).must("the leases").count();
        assert_eq!(leases, 1, "the image of the starting task");
        let image = images.busybox();
        let ((task, _), ()) = tokio::join!(idle(&node, &mut dockers, &image), async { gated.open() });
        dockers.destroy(task.id(), true).await.must("DestroyTask");
        dockers.shutdown().await;
    });
    starting.0.must("StartTask");
    assert_eq!(ours.sh(&task, "ip -4 address show eth0 | grep -c inet").await, "1");
    ours.destroy(task.id(), true).await.must("DestroyTask");
    finish(netns, node, ours).await;
}
