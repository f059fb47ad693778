//! `oci-rs doctor` with real plugins, tasks and registries. `broken_nodes` breaks nodes on purpose.

use std::{
    fs,
    os::unix::process::CommandExt,
    process::{Command, Stdio},
};

use fixtures::{
    busybox::Images,
    must::Must,
    process,
    registry::Auth,
    wait::{eventually, seconds},
};
use kit::{node::Node, plugin::PluginCommand};
use proto::driver::fingerprint_response::HealthState;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value as Json, json};

use crate::{
    disk_space::{Disk, health},
    operator::{Said, run},
};

/// What the doctor says, and its exit code.
async fn doctor(node: &Node, args: &[&str]) -> (Json, i32) {
    let said = run(node, &[&["doctor", "--json"], args].concat()).await;
    assert!([0, 3].contains(&said.code), "{} {}", said.code, said.err);
    (said.json(), said.code)
}

/// The texts of a check at this level, with their remedies.
pub(crate) fn texts(report: &Json, check: &str, level: &str) -> String {
    let findings = report["findings"].as_array().must("findings");
    let found = findings.iter().filter(|finding| finding["check"] == check && finding["level"] == level);
    found.map(|finding| format!("{}: {}\n", finding["reason"], finding["remedy"])).collect()
}

#[track_caller]
pub(crate) fn expect(report: &Json, check: &str, level: &str, part: &str) {
    assert!(texts(report, check, level).contains(part), "{check}, {level}, {part}: {report:#}");
}

/// The node's plugin block, with more options, as a file.
pub(crate) fn config(node: &Node, more: &Json) -> String {
    let mut config = node.config();
    if let (Some(config), Some(more)) = (config.as_object_mut(), more.as_object()) {
        config.extend(more.clone());
    }
    let path = node.root().join("block.json");
    fs::write(&path, config.to_string()).must("write the plugin block");
    path.display().to_string()
}

#[tokio::test]
async fn health_and_plugin_are_judged_as_the_plugin_does_and_leftovers_are_removed() {
    let node = Node::new();
    let armed = PluginCommand::new(node.root()).env("OCI_RS_FAILPOINT", "destroy-before-release");
    let mut plugin = node.launch_as(armed, json!({})).await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh("sleep 1000").build(&mut plugin).await;
    plugin.started(&task).await;

    let (report, code) = doctor(&node, &[]).await;
    plugin.reattach().await;
    let healthy = plugin.streams.fingerprint().await.health() == HealthState::Healthy;
    // Other errors of this machine, such as those of its agent's unit, do not concern the plugin's health.
    for check in ["root", "cgroups", "overlay", "user namespaces", "seccomp", "apparmor", "space", "directories"] {
        assert!(!healthy || texts(&report, check, "error").is_empty(), "{check}: {report:#}");
    }
    assert_eq!(code == 3, report["errors"].as_u64() > Some(0), "{report}");
    expect(&report, "plugin", "ok", &format!("process {}", plugin.process.pid()));
    expect(&report, "leftovers", "ok", "running plugin");
    let (report, _) = doctor(&node, &["--fix"]).await;
    assert_eq!(report["removed"], json!([]), "a plugin runs: {report}");

    // The plugin dies while it removes the task.
    plugin.destroy(task.id(), true).await.err().must("the plugin's end");
    plugin.process.kill().await;
    let (report, _) = doctor(&node, &[]).await;
    expect(&report, "plugin", "warning", "does not run");
    expect(&report, "leftovers", "warning", "1 images held for tasks that are gone");
    let said: Said = run(&node, &["doctor"]).await;
    assert!(said.out.contains("warning  leftovers: 1 images held") && said.out.contains("remedy: "), "{}", said.out);
    let (report, _) = doctor(&node, &["--fix"]).await;
    let removed = report["removed"].to_string();
    assert!(removed.contains("lease ") && removed.contains(&task.config.alloc_id), "{report}");
    expect(&report, "leftovers", "ok", "none");
    node.finish_without_plugin().await;
}

/// The other direction: the plugin's unhealthy text is an error of the doctor, in the same words.
#[tokio::test]
async fn the_reason_of_an_unhealthy_plugin_is_an_error() {
    let node = Node::new();
    let disk = Disk::mount(node.data_dir());
    let mut plugin = node.launch_with(json!({"image_limits": {"free_mib": 4}})).await;
    let filler = node.data_dir().join("filler");
    let said = |report: &Json| -> Vec<String> {
        let findings = report["findings"].as_array().must("findings");
        let errors = findings.iter().filter(|finding| finding["level"] == "error");
        let text = |value: &Json| value.as_str().map(str::to_owned).unwrap_or_default();
        errors.map(|finding| format!("{}: {}", text(&finding["reason"]), text(&finding["remedy"]))).collect()
    };
    fs::write(&filler, vec![0; 14 << 20]).must("fill the disk");
    let (state, why) = health(&mut plugin).await;
    assert_eq!(state, HealthState::Unhealthy);
    let (report, code) = doctor(&node, &[]).await;
    assert!(said(&report).contains(&why) && code == 3, "{why:?} in {report:#}");

    fs::remove_file(&filler).must("make room");
    assert_eq!(health(&mut plugin).await.0, HealthState::Healthy);
    let (report, _) = doctor(&node, &[]).await;
    assert!(!said(&report).contains(&why), "{report:#}");
    assert!(plugin.shutdown().await.success());
    drop(disk);
    node.finish_without_plugin().await;
}

#[tokio::test]
async fn ended_tasks_whose_allocation_is_gone_are_leftovers() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let ended = node.task(&images.busybox()).sh("exit 3").build(&mut plugin).await;
    let running = node.task(&images.busybox()).sh("sleep 1000").build(&mut plugin).await;
    plugin.started(&ended).await;
    assert_eq!(plugin.wait(ended.id()).await.code, 3);
    let handle = plugin.started(&running).await;
    plugin.process.kill().await;
    // The agent may ask for the exit code of the ended task.
    let (report, _) = doctor(&node, &["--fix"]).await;
    assert_eq!(report["removed"], json!([]), "{report}");
    expect(&report, "leftovers", "ok", "none");

    let dirs = [&ended, &running].map(|task| (task.alloc.dir.clone(), node.root().join(&task.config.alloc_id)));
    dirs.iter().for_each(|(dir, aside)| fs::rename(dir, aside).must("the allocation is gone"));
    let (report, _) = doctor(&node, &[]).await;
    expect(&report, "leftovers", "warning", "1 ended tasks that no agent will ask for again");
    expect(&report, "leftovers", "warning", &ended.config.alloc_id);
    let (report, _) = doctor(&node, &["--fix"]).await;
    let removed = report["removed"].to_string();
    assert!(removed.contains(&format!("ended task {}", ended.config.alloc_id)), "{report}");
    assert!(!removed.contains(&running.config.alloc_id), "it runs: {report}");
    expect(&report, "leftovers", "ok", "none");

    dirs.iter().for_each(|(dir, aside)| fs::rename(aside, dir).must("the allocation is back"));
    let plugin = node.launch().await;
    plugin.recover(&handle).await.must("RecoverTask");
    plugin.destroy(running.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_task_that_ended_without_a_record_is_told() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh("exec sleep 1000").build(&mut plugin).await;
    let handle = plugin.started(&task).await;
    let init = plugin.init_pid(&task);
    plugin.process.kill().await;
    plugin.kill_monitor(&task);
    kill_process(Pid::from_raw(init).must("a process id"), Signal::KILL).must("kill the task");
    let ended = || process::status_field(init, "State").is_none_or(|state| state.starts_with('Z'));
    assert!(eventually(seconds(10), ended).await, "the task runs");
    let (report, _) = doctor(&node, &[]).await;
    expect(&report, "lost tasks", "warning", "ended without a record");

    let plugin = node.launch().await;
    plugin.recover(&handle).await.must("RecoverTask");
    assert!(!plugin.wait(task.id()).await.err.is_empty(), "the exit code is not known");
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

/// A user's process that calls itself an agent. Its program is a shell: if the doctor asked it for its version, the
/// shell would execute a file of this name, with the rights of the doctor.
#[tokio::test]
async fn a_process_that_calls_itself_an_agent_is_not_executed() {
    let node = Node::new();
    let executed = node.root().join("executed");
    fs::write(node.root().join("version"), format!("touch {}", executed.display())).must("the script");
    for user in [65_534, 0] {
        // The shell of busybox would look for a program in itself with that name.
        let mut shell = Command::new("bash");
        shell.arg0("nomad").args(["-s", "agent"]).uid(user).stdin(Stdio::piped());
        let mut shell = shell.spawn().must("a shell");
        let (report, _) = doctor(&node, &[]).await;
        drop(shell.stdin.take());
        shell.wait().must("the shell's end");
        assert!(!executed.exists(), "of user {user}: {report:#}");
        // Root's process can be an agent of another build.
        let unknown = texts(&report, "nomad", "warning").contains("version of Nomad is unknown");
        assert_eq!(unknown, user == 0, "{report:#}");
    }
    node.finish_without_plugin().await;
}

#[tokio::test]
async fn credentials_are_tried_at_their_registry() {
    let node = Node::new();
    let images = Images::start().await;
    let block = |password: Option<&str>| {
        let auth = password.map(|password| json!({"username": "joe", "password": password}));
        let registry = auth.map_or(json!({}), |auth| json!({"auth": auth}));
        config(&node, &json!({"registry": {images.host(): registry}}))
    };
    let (report, _) = doctor(&node, &["--config", &block(None)]).await;
    expect(&report, "registry", "ok", "answers");
    images.require(Auth::Basic { user: "joe".into(), password: "hunter2".into() });
    for (password, level, part) in [
        (None, "ok", "wants credentials"),
        (Some("hunter2"), "ok", "accepts the credentials"),
        (Some("hunter3"), "error", "correct the credentials"),
    ] {
        let (report, _) = doctor(&node, &["--config", &block(password)]).await;
        expect(&report, "registry", level, part);
        assert!(!report.to_string().contains("hunter"), "{report}");
    }
    assert!(!node.data_dir().exists() && !node.state_dir().exists(), "nothing is made");
    node.finish_without_plugin().await;
}
