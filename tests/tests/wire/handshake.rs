//! Start, handshake and end of the plugin process.

use std::{os::unix::fs::FileTypeExt, path::Path};

use fixtures::{
    busybox::Images,
    must::Must,
    process,
    wait::{eventually, seconds},
};
use kit::{
    hclog,
    node::Node,
    plugin::{COOKIE, Handshake, PluginCommand, binary, nomad_config},
};
use proto::go_plugin::Empty;
use rustix::process::Signal;
use serde_json::json;

#[tokio::test]
async fn a_start_without_the_cookie_explains_itself_and_fails() {
    let node = Node::new();
    for launch in [
        PluginCommand::new(node.root()).without(COOKIE.0),
        PluginCommand::new(node.root()).env(COOKIE.0, "something else"),
    ] {
        let mut process = launch.spawn();
        let status = process.ended(seconds(5)).await;
        assert_eq!(status.code(), Some(1), "{:?}", process.stderr.so_far());
        let help = process.stderr.all(seconds(5)).await.join("\n");
        assert!(help.contains("plugin") && help.contains("Nomad"), "{help:?}");
        let stdout = process.stdout.all(seconds(5)).await;
        assert!(!stdout.iter().any(|line| line.contains("|unix|")), "{stdout:?}");
    }
    node.finish_without_plugin().await;
}

#[tokio::test]
async fn standard_output_contains_only_the_handshake() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let fields: Vec<&str> = plugin.handshake.line.split('|').collect();
    let [core, app, network, socket, protocol, certificate] = fields.as_slice() else {
        panic!("six fields without multiplexing: {:?}", plugin.handshake.line)
    };
    assert_eq!([*core, *app, *network, *protocol, *certificate], ["1", "2", "unix", "grpc", ""]);
    let kind = std::fs::metadata(socket).must("the socket").file_type();
    assert!(kind.is_socket(), "{socket}");
    assert!(plugin.handshake.socket.starts_with(node.temp_dir()), "{socket} is in TMPDIR");
    plugin.capabilities().await;
    let status = plugin.shutdown().await;
    assert!(status.success(), "{status}");
    assert_eq!(plugin.process.stdout.all(seconds(20)).await, [plugin.handshake.line.clone()]);
    node.finish_without_plugin().await;
}

#[tokio::test]
async fn multiplexing_is_declined() {
    let node = Node::new();
    let plugin = PluginCommand::new(node.root()).env("PLUGIN_MULTIPLEX_GRPC", "true").connect().await;
    assert_eq!(plugin.handshake.line.split('|').nth(6), Some("false"), "{}", plugin.handshake.line);
    node.finish(plugin).await;
}

#[tokio::test]
async fn the_socket_is_in_the_directory_of_the_host() {
    let node = Node::new();
    let directory = node.root().join("sockets");
    std::fs::create_dir(&directory).must("a directory for sockets");
    let plugin =
        PluginCommand::new(node.root()).env("PLUGIN_UNIX_SOCKET_DIR", &directory.to_string_lossy()).connect().await;
    assert!(plugin.handshake.socket.starts_with(&directory), "{}", plugin.handshake.line);
    node.finish(plugin).await;
}

#[test]
fn the_test_client_refuses_malformed_handshakes() {
    for line in ["", "2|2|unix|/s|grpc|", "1|1|unix|/s|grpc|", "1|2|unix|/s|netrpc|", "1|2|unix|/s", "hello"] {
        assert!(Handshake::parse(line).is_err(), "{line}");
    }
    assert!(Handshake::parse("1|2|unix|/s|grpc|").is_ok());
}

#[tokio::test]
async fn sigint_is_ignored() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    // Ctrl-C in a terminal reaches the whole process group.
    plugin.process.signal(Signal::INT);
    plugin.capabilities().await;
    assert!(plugin.process.is_running());
    node.finish(plugin).await;
}

#[tokio::test]
async fn sigterm_ends_the_process() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    plugin.process.signal(Signal::TERM);
    plugin.process.ended(seconds(20)).await;
    node.finish_without_plugin().await;
}

#[tokio::test]
async fn the_plugin_keeps_running_without_an_agent() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    // All connections break, as when the agent is killed. The next agent probes, connects, and does not configure the
    // plugin again.
    for _ in 0..3 {
        plugin.reattach().await;
        plugin.streams.fingerprint().await;
    }
    plugin.capabilities().await;
    node.finish(plugin).await;
}

/// A killed plugin cannot remove its socket. The next one does.
#[tokio::test]
async fn the_socket_of_a_killed_plugin_is_removed_by_the_next_one() {
    let node = Node::new();
    let mut running = Vec::new();
    // The second time, the first one of them runs, and has looked for sockets before.
    for _ in 0..2 {
        let mut killed = PluginCommand::new(node.root()).connect().await;
        killed.process.kill().await;
        let socket = &killed.handshake.socket;
        assert!(socket.exists(), "a killed process removes nothing");
        running.push(PluginCommand::new(node.root()).connect().await);
        assert!(eventually(seconds(10), || !socket.exists()).await, "{}", socket.display());
    }
    for mut plugin in running {
        plugin.capabilities().await;
        assert!(plugin.handshake.socket.exists(), "the socket of a plugin that runs");
        plugin.shutdown().await;
    }
    node.finish_without_plugin().await;
}

/// An agent that cannot apply the plugin's configuration ends without ending the plugin. No agent connects to that
/// plugin again.
#[tokio::test]
async fn a_plugin_without_a_configuration_ends_with_its_agent() {
    for configured in [false, true] {
        let node = Node::new();
        // A shell stands for the agent, which is the plugin's parent.
        let script = format!("{} & wait", binary().display());
        let agent = PluginCommand::new(node.root()).binary(Path::new("/bin/sh")).args(&["-c", &script]);
        let mut plugin = agent.connect().await;
        let packed = plugin.encode_config(&node.config()).await;
        // The agent validates the configuration without its own part.
        plugin.set_config(packed.clone(), None).await.must("SetConfig for validation");
        if configured {
            plugin.set_config(packed, Some(nomad_config())).await.must("SetConfig");
        } else {
            plugin.set_config(vec![0x91, 0x01], Some(nomad_config())).await.err().must("a refusal");
        }
        let pid = process::children(plugin.process.pid()).first().must("the plugin").0;
        let runs = || process::status_field(pid, "State").is_some_and(|state| !state.starts_with('Z'));
        assert!(runs());
        plugin.process.kill().await;
        if configured {
            plugin.reattach().await;
            plugin.capabilities().await;
            assert!(runs(), "the next agent connects to it");
            plugin.controller().shutdown(Empty {}).await.must("Shutdown");
        }
        assert!(eventually(seconds(10), || !runs()).await, "process {pid} is left behind");
        assert!(!plugin.handshake.socket.exists(), "its socket is left behind");
        node.finish_without_plugin().await;
    }
}

#[tokio::test]
async fn a_broken_standard_error_is_tolerated() {
    let node = Node::new();
    let mut plugin = PluginCommand::new(node.root()).broken_stderr().connect().await;
    let packed = plugin.encode_config(&node.config()).await;
    // A refused configuration and an unknown task produce log lines.
    let garbage = plugin.set_config(vec![0x91, 0x01], None).await;
    assert!(garbage.is_err());
    plugin.set_config(packed, Some(nomad_config())).await.must("SetConfig");
    plugin.watch();
    plugin.streams.fingerprint().await;
    assert!(plugin.inspect("nobody").await.is_err());
    assert!(plugin.process.is_running());
    node.finish(plugin).await;
}

#[tokio::test]
async fn every_line_of_standard_error_is_a_valid_log_entry() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    plugin.set_config(vec![0x91, 0x01], None).await.err().must("a refused configuration");
    plugin.stop("nobody", seconds(1), "").await.must("StopTask");
    plugin.inspect("nobody").await.err().must("an unknown task");
    plugin.shutdown().await;
    let lines = plugin.process.stderr.all(seconds(20)).await;
    let faults: Vec<String> = lines.iter().filter_map(|line| hclog::fault(line)).collect();
    assert!(faults.is_empty(), "{faults:#?}");
    node.finish_without_plugin().await;
}

/// After a crash, the next agent no longer receives the plugin's standard error.
#[tokio::test]
async fn the_log_is_also_written_to_a_file() {
    let node = Node::new();
    let file = node.root().join("plugin.log");
    let mut plugin = node.launch_with(json!({"log_file": file})).await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh("true").build(&mut plugin).await;
    plugin.started(&task).await;
    plugin.wait(task.id()).await;
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    let text = std::fs::read_to_string(&file).must("the log file");
    assert!(text.contains(task.id()), "{text:?}");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file).must("the log file").permissions());
    assert_eq!(mode & 0o077, 0, "the log is for root alone: {mode:o}");
    node.finish(plugin).await;
}

#[tokio::test]
async fn the_log_has_a_level_and_one_line_for_each_failure() {
    let node = Node::new();
    let file = node.root().join("plugin.log");
    let mut plugin = node.launch_with(json!({"log_file": file, "log_level": "WARN"})).await;
    let images = Images::start().await;
    let good = node.task(&images.busybox()).sh("true").build(&mut plugin).await;
    plugin.started(&good).await;
    let bad = node.task(&format!("{}/nothing:1", images.host())).sh("true").build(&mut plugin).await;
    plugin.start(&bad).await.err().must("an image that does not exist");
    plugin.destroy(good.id(), true).await.must("DestroyTask");
    let text = std::fs::read_to_string(&file).must("the log file");
    let lines: Vec<_> = text.lines().collect();
    // A job's mistake is no error of the driver.
    let [line] = &lines[..] else { panic!("one line for one failure: {lines:#?}") };
    assert!(line.contains(bad.id()) && line.contains(r#""@level":"warn""#), "{line}");
    node.finish(plugin).await;
}

/// With one byte as the limit, each line goes to a new file.
#[tokio::test]
async fn a_large_log_file_is_rotated() {
    let node = Node::new();
    let file = node.root().join("plugin.log");
    let options = json!({"log_file": file, "log_level": "WARN", "log_rotate_bytes": 1, "log_rotate_max_files": 2});
    let mut plugin = node.launch_with(options).await;
    let images = Images::start().await;
    let mut failed = Vec::new();
    for _ in 0..4 {
        let task = node.task(&format!("{}/nothing:1", images.host())).sh("true").build(&mut plugin).await;
        plugin.start(&task).await.err().must("an image that does not exist");
        failed.push(task);
    }
    for (name, task) in ["plugin.log", "plugin.log.1", "plugin.log.2"].iter().zip(failed.iter().rev()) {
        let path = node.root().join(name);
        let text = std::fs::read_to_string(&path).must(name);
        assert!(text.lines().count() == 1 && text.contains(task.id()), "{name}: {text:?}");
        assert_eq!(text.lines().find_map(hclog::fault), None);
        let permissions = std::fs::metadata(&path).must(name).permissions();
        let mode = std::os::unix::fs::PermissionsExt::mode(&permissions);
        assert_eq!(mode & 0o077, 0, "{name} is for root alone: {mode:o}");
    }
    assert!(!node.root().join("plugin.log.3").exists(), "more files than log_rotate_max_files");
    node.finish(plugin).await;
}

#[tokio::test]
async fn the_log_file_can_be_switched_off() {
    let node = Node::new();
    let plugin = node.launch_with(json!({"log_file": "none"})).await;
    assert!(node.data_dir().exists() && !node.data_dir().join("oci-rs.log").exists());
    node.finish(plugin).await;
}

/// The agent's start is the time at which the operator looks.
#[tokio::test]
async fn a_certificate_file_that_cannot_be_used_is_an_error_of_the_agents_start() {
    let node = Node::new();
    let plugin = PluginCommand::new(node.root()).connect().await;
    let (missing, empty) = (node.root().join("missing.pem"), node.root().join("empty.pem"));
    std::fs::write(&empty, "").must("an empty file");
    for (options, parts) in [
        (json!({"ca_file": missing}), ["ca_file", "missing.pem: No such file"]),
        (json!({"ca_file": empty}), ["ca_file", "empty.pem: it holds no PEM certificate"]),
        (json!({"cert_file": empty, "key_file": missing}), ["key_file", "missing.pem: No such file"]),
    ] {
        let mut config = node.config();
        config["registry"] = json!({"registry.example:5000": options});
        let packed = plugin.encode_config(&config).await;
        let refused = plugin.set_config(packed, None).await.err().must("a refusal");
        let text = refused.message();
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        assert!(text.contains("registry registry.example:5000") && text.contains("docs/configuration.md"), "{text}");
    }
    node.finish(plugin).await;
}

/// An operator can copy the docker driver's plugin block.
#[tokio::test]
async fn options_of_dockers_plugin_block_without_an_effect_are_in_the_log() {
    let node = Node::new();
    let file = node.root().join("plugin.log");
    let copied = json!({
        "log_file": file, "endpoint": "unix:///run/docker.sock", "infra_image": "registry.example/pause:3",
        "tls": [{ "cert": "/etc/docker/cert.pem" }], "logging": [{ "type": "splunk", "config": [{ "tag": "x" }] }],
    });
    let plugin = node.launch_with(copied).await;
    let text = std::fs::read_to_string(&file).must("the log file");
    for option in ["endpoint", "infra_image", "tls", "logging"] {
        assert_eq!(text.matches(&format!("{option} in the plugin block has no effect")).count(), 1, "{option}: {text}");
    }
    assert_eq!(text.matches("has no effect").count(), 4, "{text}");
    node.finish(plugin).await;
}

/// An agent that restarts beside a running instance launches two more processes: one for the schema, one for the
/// validation.
#[tokio::test]
async fn another_instance_does_not_affect_a_running_one() {
    let node = Node::new();
    let live = node.launch().await;
    let before = std::fs::read_dir(node.state_dir()).map(Iterator::count).unwrap_or(0);
    let asking = PluginCommand::new(node.root()).connect().await;
    let schema = asking.encode_config(&node.config()).await;
    let validating = PluginCommand::new(node.root()).connect().await;
    for _ in 0..2 {
        validating.set_config(schema.clone(), None).await.must("SetConfig for validation");
    }
    for mut short in [asking, validating] {
        let status = short.shutdown().await;
        assert!(status.success(), "{status}");
    }
    live.capabilities().await;
    assert_eq!(std::fs::read_dir(node.state_dir()).map(Iterator::count).unwrap_or(0), before);
    node.finish(live).await;
}

#[tokio::test]
async fn validation_writes_nothing_to_disk() {
    let node = Node::new();
    let mut plugin = PluginCommand::new(node.root()).connect().await;
    let packed = plugin.encode_config(&node.config()).await;
    for _ in 0..2 {
        plugin.set_config(packed.clone(), None).await.must("SetConfig for validation");
    }
    assert!(!node.state_dir().exists(), "state_dir was made by SetConfig");
    assert!(!node.data_dir().exists(), "data_dir was made by SetConfig");
    plugin.shutdown().await;
    node.finish_without_plugin().await;
}

#[tokio::test]
async fn an_unknown_option_of_the_plugin_block_is_refused_by_the_schema() {
    let node = Node::new();
    let plugin = node.launch().await;
    let answer =
        plugin.base().config_schema(proto::base::ConfigSchemaRequest {}).await.must("ConfigSchema").into_inner();
    let schema = answer.spec.must("a schema");
    kit::hcl::decode(&schema, &json!({"no_such_option": true})).err().must("a refusal");
    node.finish(plugin).await;
}
