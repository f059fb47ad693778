//! The plugin's description of itself: info, schemas, capabilities, fingerprint, health, and the streams that stay
//! open.

use std::{collections::BTreeSet, time::Duration};

use fixtures::{
    must::Must,
    wait::{seconds, within},
};
use kit::{
    hcl,
    node::Node,
    plugin::{PluginCommand, nomad_config},
};
use proto::{
    base::{ConfigSchemaRequest, PluginInfoRequest, PluginType},
    driver::{
        CreateNetworkRequest, DestroyNetworkRequest, InitRequest, RecoverTaskRequest, ShutdownRequest, TaskConfig,
        TaskEventsRequest, TaskHandle, driver_capabilities::FsIsolation, fingerprint_response::HealthState,
        network_isolation_spec::NetworkIsolationMode,
    },
    structs::attribute::Value,
};
use tonic::Code;
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};

/// Every option of the docker driver's task block: a docker job must parse after only its driver is changed.
const DOCKER_KEYS: [&str; 58] = [
    "advertise_ipv6_address",
    "args",
    "auth",
    "auth_soft_fail",
    "cap_add",
    "cap_drop",
    "cgroupns",
    "command",
    "container_exists_attempts",
    "cpu_cfs_period",
    "cpu_hard_limit",
    "cpuset_cpus",
    "devices",
    "dns_options",
    "dns_search_domains",
    "dns_servers",
    "entrypoint",
    "extra_hosts",
    "force_pull",
    "group_add",
    "healthchecks",
    "hostname",
    "image",
    "image_pull_timeout",
    "init",
    "interactive",
    "ipc_mode",
    "ipv4_address",
    "ipv6_address",
    "isolation",
    "labels",
    "load",
    "logging",
    "mac_address",
    "memory_hard_limit",
    "mount",
    "mounts",
    "network_aliases",
    "network_mode",
    "oom_score_adj",
    "pid_mode",
    "pids_limit",
    "port_map",
    "ports",
    "privileged",
    "readonly_rootfs",
    "runtime",
    "security_opt",
    "shm_size",
    "storage_opt",
    "sysctl",
    "tty",
    "ulimit",
    "userns_mode",
    "uts_mode",
    "volume_driver",
    "volumes",
    "work_dir",
];

#[tokio::test]
async fn plugin_info_names_the_driver_and_its_versions() {
    let node = Node::new();
    let plugin = PluginCommand::new(node.root()).connect().await;
    let info = plugin.base().plugin_info(PluginInfoRequest {}).await.must("PluginInfo").into_inner();
    assert_eq!(info.r#type(), PluginType::Driver);
    assert_eq!(info.plugin_api_versions, ["v0.1.0"]);
    assert_eq!(info.name, "oci-rs");
    let numbers: Vec<&str> = info.plugin_version.trim_start_matches('v').split(['.', '-', '+']).take(3).collect();
    assert!(numbers.len() == 3 && numbers.iter().all(|part| part.parse::<u32>().is_ok()), "{:?}", info.plugin_version);
    node.finish(plugin).await;
}

#[tokio::test]
async fn nomad_can_convert_both_schemas() {
    let node = Node::new();
    let mut plugin = PluginCommand::new(node.root()).connect().await;
    let answer = plugin.base().config_schema(ConfigSchemaRequest {}).await.must("ConfigSchema").into_inner();
    let config = answer.spec.must("a schema of the plugin block");
    assert_eq!(hcl::schema_faults(&config), Vec::<String>::new());
    assert!(hcl::keys(&config).is_superset(&BTreeSet::from(["state_dir".to_owned(), "data_dir".to_owned()])));
    // The plugin block is optional.
    hcl::decode(&config, &serde_json::json!({})).must("an empty plugin block");

    let task = plugin.task_schema().await;
    assert_eq!(hcl::schema_faults(&task), Vec::<String>::new());
    let keys = hcl::keys(&task);
    let missing: Vec<&str> = DOCKER_KEYS.into_iter().filter(|key| !keys.contains(*key)).collect();
    assert!(missing.is_empty(), "options of the docker driver that do not parse: {missing:?}");
    hcl::decode(&task, &serde_json::json!({})).err().must("image is required");
    node.finish(plugin).await;
}

/// The types of the docker driver's options, as real jobs use them.
#[tokio::test]
async fn task_blocks_of_docker_jobs_parse() {
    let node = Node::new();
    let mut plugin = PluginCommand::new(node.root()).connect().await;
    let schema = plugin.task_schema().await;
    let job = serde_json::json!({
        "image": "redis:7", "args": ["--port", 6379], "ports": ["db"], "labels": {"a": "b"}, "port_map": {"db": 6379},
        "auth": {"username": "u", "password": "p", "server_address": "s"}, "auth_soft_fail": true,
        "mount": [{"type": "bind", "source": "local", "target": "/x", "readonly": false,
             "bind_options": {"propagation": "rprivate"}},
                  {"type": "tmpfs", "target": "/t", "tmpfs_options": {"size": 100_000, "mode": 1023}},
                  {"type": "volume", "target": "/v", "source": "n",
                   "volume_options": {"no_copy": false, "labels": {"a": "b"},
             "driver_config": {"name": "x", "options": {"k": "v"}}}}],
        "mounts": [{"type": "bind", "source": "local", "target": "/y"}],
        "devices": [{"host_path": "/dev/null", "container_path": "/dev/n", "cgroup_permissions": "r"},
            {"host_path": "/dev/zero"}],
        "ulimit": {"nofile": "1024:2048", "nproc": "4242"}, "sysctl": {"net.core.somaxconn": "16384"},
        "storage_opt": {"size": "10G"}, "logging": {"type": "json-file", "config": {"max-size": "1m"}},
        "healthchecks": {"disable": true}, "extra_hosts": ["a:1.2.3.4"], "shm_size": 1024, "pids_limit": 10,
        "memory_hard_limit": 512, "cpu_hard_limit": true, "cpu_cfs_period": 100_000,
        "security_opt": ["no-new-privileges"],
        "entrypoint": ["/x"], "volumes": ["local/a:/a:ro"], "group_add": ["audio"], "oom_score_adj": 10,
        "image_pull_timeout": "10m", "container_exists_attempts": 3, "interactive": true, "tty": true
    });
    hcl::decode(&schema, &job).must("a docker job");
    node.finish(plugin).await;
}

#[tokio::test]
async fn set_config_accepts_both_encodings_and_repeated_calls() {
    let node = Node::new();
    let plugin = PluginCommand::new(node.root()).connect().await;
    let packed = plugin.encode_config(&node.config()).await;
    plugin.set_config(packed.clone(), None).await.must("SetConfig");
    plugin.set_config(hcl::plain(&node.config()), None).await.must("SetConfig in the harness's style");
    plugin.set_config(plugin.encode_config(&serde_json::json!({})).await, None).await.must("an empty block");
    // A Go host omits the field when it is empty.
    plugin.set_config(Vec::new(), None).await.must("no bytes at all");
    plugin.set_config(packed, Some(nomad_config())).await.must("SetConfig for good");
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_malformed_plugin_configuration_is_refused() {
    let node = Node::new();
    let plugin = PluginCommand::new(node.root()).connect().await;
    for garbage in [vec![0x91, 0x01], vec![0x81, 0xa9], b"{}".to_vec()] {
        let status = plugin.set_config(garbage.clone(), None).await.err().must(&format!("a refusal of {garbage:?}"));
        assert!(!matches!(status.code(), Code::Unavailable | Code::Cancelled), "{status}");
    }
    let wrong = hcl::plain(&serde_json::json!({"state_dir": 5, "data_dir": "relative/path"}));
    let status = plugin.set_config(wrong, None).await.err().must("a refusal");
    for option in ["state_dir", "data_dir"] {
        assert!(status.message().contains(option), "all mistakes at once: {}", status.message());
    }
    node.finish(plugin).await;
}

#[tokio::test]
async fn the_health_service_reports_serving() {
    let node = Node::new();
    let plugin = node.launch().await;
    let mut health = HealthClient::new(plugin.channel());
    let answer = health.check(HealthCheckRequest { service: "plugin".into() }).await.must("Health/Check").into_inner();
    assert_eq!(answer.status(), ServingStatus::Serving);
    node.finish(plugin).await;
}

#[tokio::test]
async fn capabilities_are_complete_and_constant() {
    let node = Node::new();
    let plugin = node.launch().await;
    let capabilities = plugin.capabilities().await;
    assert!(capabilities.send_signals && capabilities.exec);
    assert_eq!(capabilities.fs_isolation(), FsIsolation::Image);
    let modes: Vec<_> = capabilities.network_isolation_modes().collect();
    for mode in [NetworkIsolationMode::Host, NetworkIsolationMode::Group] {
        assert!(modes.contains(&mode), "{modes:?}");
    }
    assert!(!capabilities.must_create_network, "only one driver of a group may do so");
    assert!(!capabilities.disable_log_collection, "the FIFOs are how logs leave a task");
    assert!(!capabilities.dynamic_workload_users, "users are those of the image");
    assert_eq!(plugin.capabilities().await, capabilities, "constant");
    node.finish(plugin).await;
}

#[tokio::test]
async fn the_fingerprint_arrives_at_once_and_its_stream_stays_open() {
    let node = Node::new();
    let plugin = node.launch().await;
    let first = plugin.streams.fingerprint().await;
    assert_eq!(first.health(), HealthState::Healthy, "{}", first.health_description);
    assert!(first.err.is_empty());
    let version = first.attributes.get("driver.oci-rs.version").and_then(|attribute| attribute.value.clone());
    assert!(matches!(version, Some(Value::StringVal(text)) if !text.is_empty()), "{:?}", first.attributes);
    // No stream that must stay open has ended, and no message was repeated in a loop.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(plugin.streams.ended(), Vec::<String>::new());
    assert!(plugin.streams.fingerprints().len() <= 2);
    node.finish(plugin).await;
}

#[tokio::test]
async fn many_open_streams_do_not_block_calls() {
    let node = Node::new();
    let plugin = node.launch().await;
    let mut streams = Vec::new();
    for _ in 0..400 {
        streams.push(
            within(seconds(10), "one more stream", plugin.driver().task_events(TaskEventsRequest {}))
                .await
                .must("TaskEvents"),
        );
    }
    plugin.capabilities().await;
    drop(streams);
    node.finish(plugin).await;
}

#[tokio::test]
async fn large_messages_are_accepted() {
    let node = Node::new();
    let plugin = node.launch().await;
    let config = TaskConfig { id: "large".into(), ..Default::default() };
    let handle = TaskHandle { version: 1, config: Some(config), state: 1, driver_state: vec![b'x'; 16 << 20] };
    let request = RecoverTaskRequest { task_id: String::new(), handle: Some(handle) };
    let status = plugin.driver().recover_task(request).await.err().must("a refusal of garbage");
    assert!(!matches!(status.code(), Code::OutOfRange | Code::ResourceExhausted), "{}", status.code());
    node.finish(plugin).await;
}

#[tokio::test]
async fn calls_of_newer_agents_are_harmless() {
    let node = Node::new();
    let plugin = node.launch().await;
    for _ in 0..2 {
        plugin.driver().init(InitRequest {}).await.must("Init");
    }
    // An agent calls this before Kill while tasks run. It must stop nothing, and the process keeps running.
    plugin.driver().shutdown(ShutdownRequest {}).await.must("Shutdown of the driver");
    plugin.capabilities().await;
    for status in [
        plugin.driver().create_network(CreateNetworkRequest::default()).await.err(),
        plugin.driver().destroy_network(DestroyNetworkRequest::default()).await.err(),
    ] {
        assert_eq!(status.must("no network management").code(), Code::Unimplemented);
    }
    node.finish(plugin).await;
}
