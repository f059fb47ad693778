//! `oci-rs rollback`: Nomad's docker driver takes its name back on a node with running tasks.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
};

use fixtures::{
    busybox::Images,
    must::Must,
    wait::{eventually, seconds},
};
use kit::{
    node::Node,
    plugin::{COOKIE, PluginCommand},
};
use serde_json::{Value as Json, json};

use crate::{json_fields::expect_documented, names::docker};

/// Exit code, standard output and standard error of the command.
async fn rollback(node: &Node, args: &[&str]) -> (i32, String, String) {
    let (code, out, err) = rollback_killed_at(node, "", args).await;
    (code.must("an exit code"), out, err)
}

/// The same, and no exit code if the command was killed at the failpoint.
async fn rollback_killed_at(node: &Node, point: &str, args: &[&str]) -> (Option<i32>, String, String) {
    let config = node.root().join("agent.json");
    let agent = json!({"plugin": [{"oci-rs": [{"config": [{}]}]}, {"docker": [{"config": [node.config()]}]}]});
    fs::write(&config, agent.to_string()).must("write the agent's configuration");
    let config = config.display().to_string();
    let args = [&["rollback", "--config", &config], args].concat();
    let command = PluginCommand::new(node.root()).without(COOKIE.0).env("OCI_RS_FAILPOINT", point);
    let mut process = command.args(&args).spawn();
    let (out, err) = (process.stdout.all(seconds(60)).await, process.stderr.all(seconds(60)).await);
    (process.ended(seconds(60)).await.code(), out.join("\n"), err.join("\n"))
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
    expect_documented("rollback", &report);
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

#[tokio::test]
async fn a_killed_rollback_is_finished_by_the_next() {
    let node = Node::new();
    let images = Images::start().await;
    let idle = "while :; do sleep 1000; done";
    for point in [
        "rollback-before-removal",
        "destroy-before-kill",
        "destroy-before-groups:2",
        "destroy-before-directory",
        "rollback-before-groups",
        "group-before-unpin",
        "group-before-record",
    ] {
        let mut plugin = node.launch_as(docker(&node), json!({})).await;
        let tasks = [
            node.task(&images.busybox()).sh(idle).build(&mut plugin).await,
            node.task(&images.busybox()).sh(idle).build(&mut plugin).await,
        ];
        for task in &tasks {
            plugin.started(task).await;
        }
        let alloc = &tasks[0].config.alloc_id;
        let namespace = plugin.create_network(alloc, "").await.must("CreateNetwork").isolation_spec.must("one").path;
        plugin.process.kill().await;
        let args = ["--timeout", "0s", "--json"];
        let (code, _, err) = rollback_killed_at(&node, point, &args).await;
        assert_eq!(code, None, "{point} was not reached: {err}");
        let (code, out, err) = rollback(&node, &args).await;
        assert_eq!(code, 0, "{point}: {err}");
        let report: Json = serde_json::from_str(&out).must("JSON");
        assert_eq!(report["failures"], json!([]), "{point}");
        assert!(!Path::new(&namespace).exists(), "{point}");
        let left = |name: &str| fs::read_dir(node.state_dir().join(name)).map(Iterator::count).unwrap_or(0);
        assert_eq!((left("tasks"), left("groups")), (0, 0), "{point}");
    }
    node.finish_without_plugin().await;
}

/// A process in a group's network that no driver of ours started, as a task of the driver `exec` has them.
struct Neighbour(Child);

impl Neighbour {
    fn start(alloc: &str) -> Self {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", alloc, "sleep", "1000"]).stdin(Stdio::null());
        Self(command.spawn().must("ip"))
    }

    fn is_inside(&self, namespace: &str) -> bool {
        let inode = |path: &str| fs::metadata(path).ok().map(|file| std::os::unix::fs::MetadataExt::ino(&file));
        inode(namespace).is_some() && inode(&format!("/proc/{}/ns/net", self.0.id())) == inode(namespace)
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[tokio::test]
async fn a_rollback_keeps_the_network_of_another_drivers_task() {
    let node = Node::new();
    let mut plugin = node.launch_as(docker(&node), json!({})).await;
    let alloc = node.alloc();
    let namespace = plugin.create_network(&alloc.id, "").await.must("CreateNetwork").isolation_spec.must("one").path;
    let neighbour = Neighbour::start(&alloc.id);
    assert!(eventually(seconds(5), || neighbour.is_inside(&namespace)).await, "ip entered no namespace");
    plugin.process.kill().await;

    let (code, _, err) = rollback(&node, &[]).await;
    let expected = format!("the network of allocation {}: process {}, of another", alloc.id, neighbour.0.id());
    assert!(code == 1 && err.contains(&expected), "{err}");
    assert!(neighbour.is_inside(&namespace));

    drop(neighbour);
    let (code, out, _) = rollback(&node, &[]).await;
    assert!(code == 0 && out.contains(&format!("removed the network of allocation {}", alloc.id)), "{out}");
    assert!(!Path::new(&namespace).exists());
    node.finish_without_plugin().await;
}
