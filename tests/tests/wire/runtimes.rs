//! Tasks with OCI runtimes of the node: runc, crun and gVisor (runsc), as Debian has them.

use std::{fs, os::unix::fs::PermissionsExt, time::Duration};

use fixtures::{
    busybox::Images,
    cgroup,
    must::Must,
    process, program,
    wait::{eventually, seconds, within},
};
use kit::{node::Node, plugin::Plugin, task::Task};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value as Json, json};

use crate::{apparmor, selinux};

/// The plugin block for a runtime.
pub(super) fn options(runtime: &str) -> Json {
    json!({ "allow_runtimes": [runtime], "runtime": { runtime: {} } })
}

/// Whether the runtime is installed. Its tests are skipped otherwise.
pub(super) fn is_installed(runtime: &str) -> bool {
    program::find(runtime).is_some()
}

async fn task(node: &Node, plugin: &mut Plugin, images: &Images, runtime: &str, script: &str) -> Task {
    let task = node.task(&images.busybox()).option("runtime", json!(runtime)).sh(script);
    task.resources(100, 128, 0).build(plugin).await
}

/// The processes in the task's cgroups. A runtime may have made further cgroups below them.
fn members(task: &Task) -> Vec<i32> {
    cgroup::find(&task.alloc.id).iter().flat_map(|group| cgroup::members(group)).collect()
}

/// Kills the task's monitor.
fn kill_monitor(node: &Node, task: &Task) {
    let tasks = fs::read_dir(node.state_dir().join("tasks")).must("the tasks").flatten();
    let mut of_alloc = tasks.filter(|entry| entry.file_name().to_string_lossy().starts_with(&task.alloc.id));
    let record = of_alloc.next().must("the task's directory").path().join("monitor.json");
    let record: Json = serde_json::from_slice(&fs::read(record).must("a record")).must("JSON");
    kill(record["pid"].as_i64().must("a pid") as i32);
}

fn kill(pid: i32) {
    kill_process(Pid::from_raw(pid).must("a pid"), Signal::KILL).must("SIGKILL");
}

/// A script that ends by itself with a code, when a file appears.
fn until_told(code: i32) -> String {
    format!("echo up; while [ ! -e /local/go ]; do sleep 0.05; done; exit {code}")
}

async fn output_and_exit_codes(runtime: &str) {
    if !is_installed(runtime) {
        return;
    }
    let node = Node::new();
    let mut plugin = node.launch_with(options(runtime)).await;
    let images = Images::start().await;
    for (script, code) in [("echo out; echo err >&2; pwd; exit 0", 0), ("echo out; echo err >&2; pwd; exit 7", 7)] {
        let task = task(&node, &mut plugin, &images, runtime, script).await;
        plugin.started(&task).await;
        let exit = plugin.wait(task.id()).await;
        assert_eq!((exit.code, exit.signal, exit.oom), (code, 0, false), "{exit:?}");
        plugin.destroy(task.id(), true).await.must("DestroyTask");
        assert_eq!(task.stdout().all(seconds(5)).await, "out\n/\n");
        assert_eq!(task.stderr().all(seconds(5)).await, "err\n");
    }
    // A terminal, and Nomad's directories.
    let script = "test -t 1 && echo terminal; echo $NOMAD_TASK_NAME >/local/name; cat /etc/hosts >/alloc/hosts";
    let in_terminal = node.task(&images.busybox()).option("runtime", json!(runtime)).option("tty", json!(true));
    let in_terminal = in_terminal.sh(script).resources(100, 128, 0).build(&mut plugin).await;
    plugin.started(&in_terminal).await;
    assert_eq!(plugin.wait(in_terminal.id()).await.code, 0);
    plugin.destroy(in_terminal.id(), true).await.must("DestroyTask");
    assert_eq!(in_terminal.stdout().all(seconds(5)).await, "terminal\r\n");
    assert_eq!(fs::read_to_string(in_terminal.dir().join("local/name")).must("a file"), "main\n");
    assert!(!fs::read_to_string(in_terminal.alloc.dir.join("alloc/hosts")).must("a file").is_empty());

    let missing = node.task(&images.busybox()).option("runtime", json!(runtime)).command("/no/such", &[]);
    let missing = missing.resources(100, 128, 0).build(&mut plugin).await;
    let error = plugin.start(&missing).await.err().must("a refusal");
    assert!(
        error.message().contains(&format!("runtime {runtime:?}")) && error.message().contains("/no/such"),
        "{error}"
    );
    node.finish(plugin).await;
}

async fn commands_and_counters(runtime: &str) {
    if !is_installed(runtime) {
        return;
    }
    let node = Node::new();
    let mut plugin = node.launch_with(options(runtime)).await;
    let images = Images::start().await;
    let task = task(&node, &mut plugin, &images, runtime, "echo up; while :; do sleep 0.2; done").await;
    plugin.started(&task).await;
    task.stdout().contains("up", seconds(20)).await;
    for code in [0, 5] {
        let script = format!("echo out $NOMAD_TASK_NAME; echo err >&2; exit {code}");
        let command = ["/bin/sh", "-c", script.as_str()];
        let outcome = plugin.exec_to_end(task.id(), &command, None, seconds(20)).await.must("a session");
        assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str(), outcome.code), ("out main\n", "err\n", code));
    }
    let session = plugin.exec_streaming(task.id(), &["cat"], None).await.must("a session");
    session.stdin(b"hello\n");
    session.close_stdin();
    assert_eq!(session.finish(seconds(20)).await.must("a session").stdout, "hello\n");
    let script = "test -t 0 && test -t 1 && echo is-terminal; \
                  until [ \"$(stty size 2>/dev/null)\" = '24 80' ]; do sleep 0.05; done; exit 3";
    let command = ["/bin/sh", "-c", script];
    let outcome = plugin.exec_to_end(task.id(), &command, Some((24, 80)), seconds(20)).await.must("a session");
    assert_eq!((outcome.stdout.as_str(), outcome.code), ("is-terminal\r\n", 3));
    let outcome = plugin.exec_to_end(task.id(), &["/no/such"], None, seconds(20)).await.must("an answer");
    assert_eq!(outcome.code, 127, "{outcome:?}");

    // The command's cgroup counts it, and a command that takes too long is killed.
    let before = members(&task).len();
    let answer = plugin.exec(task.id(), &["sleep", "1000"], Duration::from_millis(700)).await;
    assert!(answer.is_err() || answer.is_ok_and(|answer| answer.result.is_some_and(|result| result.exit_code != 0)));
    let gone = eventually(seconds(10), || members(&task).len() <= before).await;
    assert!(gone, "{:?}", members(&task));

    let mut stream = plugin.stats(task.id(), Duration::from_millis(100)).await.must("TaskStats");
    let message = within(seconds(5), "a sample", stream.message()).await.must("TaskStats").must("a sample");
    let usage = message.stats.must("stats").agg_resource_usage.must("a usage");
    let memory = usage.memory.must("memory");
    assert!(memory.usage > 100_000, "the container's processes are counted: {memory:?}");
    plugin.end(&task).await;
    node.finish(plugin).await;
}

async fn stops_and_kills(runtime: &str) {
    if !is_installed(runtime) {
        return;
    }
    let node = Node::new();
    let mut plugin = node.launch_with(options(runtime)).await;
    let images = Images::start().await;
    let script = "trap 'echo bye; exit 4' TERM; trap 'echo usr1' USR1; echo ready; while :; do sleep 0.05; done";
    let polite = task(&node, &mut plugin, &images, runtime, script).await;
    plugin.started(&polite).await;
    polite.stdout().contains("ready", seconds(20)).await;
    plugin.signal(polite.id(), "SIGUSR1").await.must("SignalTask");
    polite.stdout().contains("usr1", seconds(10)).await;
    plugin.stop(polite.id(), seconds(60), "").await.must("StopTask");
    assert_eq!(plugin.wait(polite.id()).await.code, 4);
    plugin.destroy(polite.id(), true).await.must("DestroyTask");

    let script = "trap '' TERM; echo ready; while :; do sleep 0.05; done";
    let stubborn = task(&node, &mut plugin, &images, runtime, script).await;
    plugin.started(&stubborn).await;
    stubborn.stdout().contains("ready", seconds(20)).await;
    plugin.stop(stubborn.id(), Duration::from_millis(300), "").await.must("StopTask");
    assert_eq!(plugin.wait(stubborn.id()).await.code, 137);
    plugin.destroy(stubborn.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

async fn kills_of_plugin_and_monitor(runtime: &str) {
    if !is_installed(runtime) {
        return;
    }
    let node = Node::new();
    let mut plugin = node.launch_with(options(runtime)).await;
    let images = Images::start().await;
    let survivor = task(&node, &mut plugin, &images, runtime, &until_told(21)).await;
    let ended = task(&node, &mut plugin, &images, runtime, &until_told(22)).await;
    let alone = task(&node, &mut plugin, &images, runtime, &until_told(23)).await;
    let tasks = [&survivor, &ended, &alone];
    let mut handles = Vec::new();
    for task in tasks {
        handles.push(plugin.started(task).await);
        task.stdout().contains("up", seconds(20)).await;
    }
    plugin.process.kill().await;
    fs::write(ended.dir().join("local/go"), "").must("end the task");
    assert!(eventually(seconds(20), || members(&ended).is_empty()).await);

    let plugin = node.launch_with(options(runtime)).await;
    for handle in &handles {
        plugin.recover(handle).await.must("RecoverTask");
    }
    assert_eq!(plugin.wait(ended.id()).await.code, 22);
    assert_eq!(plugin.sh(&survivor, "echo exec works").await, "exec works");
    fs::write(survivor.dir().join("local/go"), "").must("end the task");
    assert_eq!(plugin.wait(survivor.id()).await.code, 21);
    kill_monitor(&node, &alone);
    assert_eq!(plugin.sh(&alone, "echo exec works").await, "exec works");
    fs::write(alone.dir().join("local/go"), "").must("end the task");
    // Without the monitor, the kernel tells the exit status, if it is new enough.
    assert!([23, 255].contains(&plugin.wait(alone.id()).await.code));
    for task in tasks {
        plugin.destroy(task.id(), true).await.must("DestroyTask");
    }
    node.finish(plugin).await;
}

macro_rules! with_each_runtime {
    ($($name:ident),*) => {
        mod runc { $(#[tokio::test] async fn $name() { super::$name("runc").await })* }
        mod crun { $(#[tokio::test] async fn $name() { super::$name("crun").await })* }
        mod runsc { $(#[tokio::test] async fn $name() { super::$name("runsc").await })* }
    };
}

with_each_runtime!(output_and_exit_codes, commands_and_counters, stops_and_kills, kills_of_plugin_and_monitor);

/// The tasks of runtimes that share the node's kernel, and the commands in them, have the profile or the label that
/// tasks of the built-in runtime have. Without AppArmor and SELinux the test is skipped.
#[tokio::test]
async fn a_security_module_of_the_node_confines_their_tasks() {
    let (labels, profiles) = (selinux::is_enforced(), apparmor::can_load());
    for runtime in ["runc", "crun"].into_iter().filter(|name| is_installed(name) && (labels || profiles)) {
        let (node, images) = (Node::new(), Images::start().await);
        let mut plugin = node.launch_with(options(runtime)).await;
        let task = task(&node, &mut plugin, &images, runtime, "echo up; while :; do sleep 1000; done").await;
        plugin.started(&task).await;
        task.stdout().contains("up", seconds(20)).await;
        if profiles {
            let expected = [apparmor::CONFINED; 3].join("\n");
            assert_eq!(plugin.sh(&task, apparmor::PROFILES).await, expected, "{runtime}");
        }
        if labels {
            let found = plugin.sh(&task, "cat /proc/*/attr/current | tr '\\000' '\\n' | sort | uniq").await;
            let one = found.starts_with("system_u:system_r:container_t:s0:c") && found.lines().count() == 1;
            assert!(one, "{runtime}: {found}");
            for script in [selinux::PLACES, selinux::DEVICES] {
                plugin.sh(&task, script).await;
            }
        }
        plugin.end(&task).await;
        node.finish(plugin).await;
    }
}

/// A runtime that does something else before or after one of its commands.
fn wrapper(node: &Node, runtime: &str, command: &str, script: &str) -> Json {
    let path = node.root().join(format!("{runtime}-wrapper"));
    let text = format!("#!/bin/sh\ncase \" $* \" in *\" {command} \"*) {script};; esac\nexec {runtime} \"$@\"\n");
    fs::write(&path, text).must("a script");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).must("an executable script");
    json!({ "allow_runtimes": ["wrapped"], "runtime": { "wrapped": { "path": path } } })
}

/// SIGKILL for the runtime before and after it made the container's first process, and before the start.
#[tokio::test]
async fn a_runtime_that_is_killed_leaves_nothing() {
    for (runtime, command, script) in [
        ("crun", "create", "kill -9 $$"),
        ("runc", "create", "runc \"$@\"; kill -9 $$"),
        ("runsc", "create", "runsc \"$@\"; kill -9 $$"),
        ("crun", "start", "kill -9 $$"),
    ] {
        if !is_installed(runtime) {
            continue;
        }
        let node = Node::new();
        let mut plugin = node.launch_with(wrapper(&node, runtime, command, script)).await;
        let images = Images::start().await;
        let task = task(&node, &mut plugin, &images, "wrapped", "sleep 1000").await;
        let error = plugin.start(&task).await.err().must("a failure");
        let expected = format!("runtime \"wrapped\": {command}: signal: 9");
        assert!(error.message().contains(&expected), "{runtime}: {error}");
        node.finish(plugin).await;
    }
}

/// A runtime that hangs is killed with the task that is being stopped, or with its plugin.
#[tokio::test]
async fn a_hanging_runtime_is_killed_with_the_monitor() {
    if !is_installed("crun") {
        return;
    }
    let node = Node::new();
    let pid = node.root().join("pid-of-the-runtime");
    let hang = format!("echo $$ > {0}.new; mv {0}.new {0}; exec sleep 1000", pid.display());
    let mut plugin = node.launch_with(wrapper(&node, "crun", "start", &hang)).await;
    let images = Images::start().await;
    let task = task(&node, &mut plugin, &images, "wrapped", "sleep 1000").await;
    let start = plugin.start(&task);
    let kill = async {
        let monitor = || process::children(plugin.process.pid()).first().map(|(pid, _)| *pid);
        assert!(eventually(seconds(20), || pid.exists()).await);
        kill(monitor().must("a monitor"));
    };
    let (started, ()) = tokio::join!(start, kill);
    started.err().must("a failure");
    let runtime: i32 = fs::read_to_string(&pid).must("a pid").trim().parse().must("a number");
    let ended = || process::status_field(runtime, "State").is_none_or(|state| state.starts_with('Z'));
    assert!(eventually(seconds(20), ended).await, "the runtime is left: {}", process::command_line(runtime));
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_runtime_must_be_known_allowed_and_installed() {
    let node = Node::new();
    let block = json!({
        "allow_runtimes": ["runc", "missing"], "runtime": { "missing": { "path": "/no/such/runtime" } },
    });
    let mut plugin = node.launch_with(block).await;
    let images = Images::start().await;
    for (runtime, expected) in [
        ("missing", "runtime: \"missing\" is not installed on this node: there is no executable /no/such/runtime"),
        ("runsc", "runtime: \"runsc\" is not allowed on this node"),
        ("other", "runtime: \"other\" is not supported: this node knows no such runtime"),
    ] {
        let task = task(&node, &mut plugin, &images, runtime, "true").await;
        let error = plugin.start(&task).await.err().must("a refusal");
        assert!(error.message().contains(expected), "{error}");
    }
    let built_in = task(&node, &mut plugin, &images, "runc", "exit 3").await;
    plugin.started(&built_in).await;
    assert_eq!(plugin.wait(built_in.id()).await.code, 3);
    plugin.destroy(built_in.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}
