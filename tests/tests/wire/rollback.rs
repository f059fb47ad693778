//! `oci-rs rollback`: Nomad's docker driver takes its name back on a node with running tasks.

use std::{fs, path::Path};

use fixtures::{busybox::Images, must::Must, wait::seconds};
use kit::{
    node::Node,
    plugin::{COOKIE, PluginCommand},
};
use serde_json::{Value as Json, json};

use crate::names::docker;

/// Exit code, standard output and standard error of the command.
async fn rollback(node: &Node, args: &[&str]) -> (i32, String, String) {
    let config = node.root().join("agent.json");
    let agent = json!({"plugin": [{"oci-rs": [{"config": [{}]}]}, {"docker": [{"config": [node.config()]}]}]});
    fs::write(&config, agent.to_string()).must("write the agent's configuration");
    let config = config.display().to_string();
    let args = [&["rollback", "--config", &config], args].concat();
    let mut process = PluginCommand::new(node.root()).without(COOKIE.0).args(&args).spawn();
    let (out, err) = (process.stdout.all(seconds(60)).await, process.stderr.all(seconds(60)).await);
    (process.ended(seconds(60)).await.code().must("an exit code"), out.join("\n"), err.join("\n"))
}

#[tokio::test]
async fn a_rollback_removes_what_has_dockers_name_and_nothing_else() {
    let node = Node::new();
    let images = Images::start().await;
    let mut own = node.launch().await;
    let kept = node.task(&images.busybox()).sh("sleep 1000").build(&mut own).await;
    own.started(&kept).await;

    let mut plugin = node.launch_as(docker(&node), json!({})).await;
    let script = "trap 'echo asked >/local/end; exit 0' USR1; echo ready; while :; do sleep 0.1; done";
    let polite = node.task(&images.with_stop_signal("SIGUSR1")).sh(script).build(&mut plugin).await;
    plugin.started(&polite).await;
    polite.stdout().contains("ready", seconds(10)).await;
    // As first process of its container it ignores the signal.
    let deaf = node.task(&images.busybox()).command("sleep", &["1000"]).build(&mut plugin).await;
    plugin.started(&deaf).await;
    let group = plugin.create_network(&polite.config.alloc_id, "").await.must("CreateNetwork");
    let namespace = group.isolation_spec.must("a network").path;

    let (code, _, err) = rollback(&node, &[]).await;
    assert!(code == 1 && err.contains(&format!("process {}", plugin.process.pid())), "{err}");
    assert!(plugin.inspect(polite.id()).await.is_ok() && Path::new(&namespace).exists(), "nothing was removed");

    plugin.process.kill().await;
    let (code, out, err) = rollback(&node, &["--timeout", "500ms", "--json"]).await;
    assert_eq!(code, 0, "{err}");
    let report: Json = serde_json::from_str(&out).must("JSON");
    assert_eq!(report["containers"].as_array().map(Vec::len), Some(2), "{report}");
    assert_eq!(report["groups"], json!([polite.config.alloc_id]));
    assert_eq!(fs::read_to_string(polite.dir().join("local/end")).must("the task's file"), "asked\n");
    assert!(!Path::new(&namespace).exists());
    assert!(own.inspect(kept.id()).await.is_ok(), "the other name's task runs");

    // A repetition finds nothing.
    let (code, out, _) = rollback(&node, &[]).await;
    assert!(code == 0 && out.contains("0 tasks and 0 networks of groups removed"), "{out}");
    // Wrong directories do not look like an empty node.
    let (code, _, err) = rollback(&node, &["--state-dir", "/nonexistent"]).await;
    assert!(code == 1 && err.contains("is --config, --state-dir or --data-dir missing"), "{err}");

    own.destroy(kept.id(), true).await.must("DestroyTask");
    node.finish(own).await;
}
