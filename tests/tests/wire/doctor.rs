//! `oci-rs doctor` on nodes that are broken on purpose: real breakages. The decisions have tables of their own.

use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    process::{Command, Stdio},
};

use fixtures::{busybox::Images, must::Must, registry::Auth};
use kit::{
    node::Node,
    plugin::{COOKIE, PluginCommand},
};
use proto::driver::fingerprint_response::HealthState;
use serde_json::{Value as Json, json};

use crate::operator::{Said, run};

/// What the doctor says, and its exit code.
async fn doctor(node: &Node, args: &[&str]) -> (Json, i32) {
    let said = run(node, &[&["doctor", "--json"], args].concat()).await;
    assert!([0, 3].contains(&said.code), "{} {}", said.code, said.err);
    (said.json(), said.code)
}

/// The texts of a check at this level, with their remedies.
fn texts(report: &Json, check: &str, level: &str) -> String {
    let findings = report["findings"].as_array().must("findings");
    let found = findings.iter().filter(|finding| finding["check"] == check && finding["level"] == level);
    found.map(|finding| format!("{}: {}\n", finding["reason"], finding["remedy"])).collect()
}

#[track_caller]
fn expect(report: &Json, check: &str, level: &str, part: &str) {
    assert!(texts(report, check, level).contains(part), "{check}, {level}, {part}: {report:#}");
}

/// The node's plugin block, with more options, as a file.
fn config(node: &Node, more: &Json) -> String {
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

/// Runs the doctor in a mount namespace of its own, in which a script breaks the node first. `$state` and `$data` are
/// the directories.
fn broken(node: &Node, script: &str, more: &Json) -> (Json, Option<i32>) {
    let path = config(node, more);
    let doctor = PluginCommand::new(node.root()).without(COOKIE.0).as_std();
    let mut command = Command::new("unshare");
    let script = format!("set -e\n{script}\nexec \"$@\" >&3");
    command.args(["--mount", "sh", "-c", &format!("exec 3>&1 >&2\n{script}"), "sh"]).arg(doctor.get_program());
    command.args(["doctor", "--json", "--config", &path]).env_clear();
    command.envs(doctor.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.env("state", node.state_dir()).env("data", node.data_dir());
    let output = command.output().must("run unshare");
    let error = String::from_utf8_lossy(&output.stderr);
    (serde_json::from_slice(&output.stdout).must(&format!("JSON, not {error}")), output.status.code())
}

#[tokio::test]
async fn real_breakages_are_found() {
    let node = Node::new();
    fs::create_dir(node.state_dir()).must("state_dir");
    let nothing = json!({});
    let (report, _) = broken(&node, "", &nothing);
    expect(&report, "data_dir", "warning", "does not exist");
    fs::create_dir(node.data_dir()).must("data_dir");
    for directory in [node.state_dir(), node.data_dir()] {
        fs::set_permissions(directory, fs::Permissions::from_mode(0o700)).must("the mode");
    }
    let (well, _) = broken(&node, "", &nothing);
    for check in ["data_dir", "state_dir", "space", "directories", "cni", "iptables", "registry"] {
        assert_eq!(texts(&well, check, "error"), "", "{check}: {well:#}");
    }

    let small = "mount -t tmpfs -o mode=0700,size=16m none $data";
    let hidden =
        |program: &str| format!("for f in /usr/sbin/{program} /sbin/{program}; do mount --bind /dev/null $f; done");
    for (script, more, check, level, part) in [
        (small.to_owned(), &nothing, "space", "error", "less than 64 MiB"),
        (small.to_owned(), &nothing, "data_dir", "warning", "in memory"),
        (
            format!("{small}; \"$@\" || true; head -c 17m /dev/zero > $data/filler || true"),
            &json!({"image_limits": {"free_mib": 1}}),
            "space",
            "error",
            "less than 1 MiB",
        ),
        (
            "mount -t tmpfs -o mode=0700,size=512m,nr_inodes=200 none $data; \"$@\" || true
             i=0; while touch $data/$i 2>/dev/null; do i=$((i + 1)); done"
                .to_owned(),
            &nothing,
            "space",
            "error",
            "no free inode",
        ),
        (
            "mount --bind $data $data; mount -o remount,bind,ro $data".to_owned(),
            &nothing,
            "data_dir",
            "error",
            "with rw",
        ),
        ("chmod 0777 $state".to_owned(), &nothing, "state_dir", "error", "chmod go-w"),
        (String::new(), &json!({"network": {"cni_path": "/nonexistent"}}), "cni", "warning", "bridge, firewall"),
        (hidden("nft"), &nothing, "filters", "warning", "install nftables"),
        (hidden("iptables"), &nothing, "iptables", "warning", "install iptables"),
        (String::new(), &json!({"registry": {"127.0.0.1:1": {}}}), "registry", "error", "127.0.0.1:1"),
        (
            String::new(),
            &json!({"registry": {"127.0.0.1:1": {"mirrors": ["127.0.0.1:2"]}}}),
            "registry",
            "warning",
            "this mirror does not help",
        ),
        (
            String::new(),
            &json!({"auth": {"helper": "of-no-program"}, "registry": {"127.0.0.1:1": {}}}),
            "registry",
            "error",
            "docker-credential-of-no-program",
        ),
    ] {
        let (report, code) = broken(&node, &script, more);
        expect(&report, check, level, part);
        assert_eq!(code, Some(if report["errors"] == json!(0) { 0 } else { 3 }), "{report}");
    }
    node.finish_without_plugin().await;
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
