//! What a task can use up on the node, and that the plugin serves the other tasks meanwhile.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use fixtures::{
    busybox::Images,
    cgroup,
    must::Must,
    process::children,
    wait::{eventually, seconds},
};
use kit::{node::Node, plugin::Plugin, task::Task};
use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
use serde_json::json;
use tokio::task::JoinSet;

use crate::exhaustion_loads::answers;

const IDLE: &str = "while :; do sleep 1000; done";

/// Nests directories in the root of a running task.
fn nest(plugin: &Plugin, task: &Task, name: &str, depth: u32) {
    let open = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = format!("/proc/{}/root", plugin.init_pid(task));
    let mut current = openat(CWD, Path::new(&root), open, Mode::empty()).must("the task's root");
    for _ in 0..depth {
        mkdirat(&current, name, Mode::RWXU).must("a directory");
        current = openat(&current, name, open, Mode::empty()).must("opened");
    }
}

#[tokio::test]
async fn a_deep_tree_is_removed_and_ends_no_plugin() {
    let (node, images) = (Node::new(), Images::start().await);
    let memory = tempfile::tempdir_in("/dev/shm").must("a directory in memory");
    // The test makes the directories, and its user does not exist in a user namespace of the task.
    let options = json!({"data_dir": memory.path(), "userns": {"mode": "off"}});
    let mut plugin = node.launch_with(options).await;
    let task = node.task(&images.busybox()).sh(IDLE).build(&mut plugin).await;
    let other = node.task(&images.busybox()).sh(IDLE).build(&mut plugin).await;
    for task in [&task, &other] {
        plugin.started(task).await;
    }
    nest(&plugin, &task, "d", 60_000);
    nest(&plugin, &task, &"long".repeat(63), 2_000);
    tokio::join!(plugin.end(&task), answers(&plugin, &other, "while a deep tree is removed"));
    answers(&plugin, &other, "after a deep tree").await;
    plugin.end(&other).await;
    let left = fs::read_dir(memory.path().join("containers")).must("the writable layers").count();
    assert_eq!(left, 0, "the writable layer is left");
    node.finish(plugin).await;
}

/// Freezes or thaws all processes of a task.
fn freeze(task: &Task, frozen: bool) {
    let (file, state, yes, no) = match cgroup::mode() {
        cgroup::Mode::V1 => ("freezer.state", "freezer.state", "FROZEN", "THAWED"),
        cgroup::Mode::V2 => ("cgroup.freeze", "cgroup.events", "1", "0"),
    };
    let groups: Vec<PathBuf> =
        cgroup::find(&task.alloc.id).into_iter().filter(|group| group.join(file).exists()).collect();
    assert!(!groups.is_empty(), "the task has no cgroup that can be frozen");
    for group in groups {
        fs::write(group.join(file), if frozen { yes } else { no }).must("freeze or thaw");
        let reached = || {
            let text = fs::read_to_string(group.join(state)).must("the state");
            text.contains(if frozen { yes } else { no }) || text.contains(&format!("frozen {}", i32::from(frozen)))
        };
        while !reached() {
            std::thread::yield_now();
        }
    }
}

/// A frozen process neither begins a command nor, on cgroups v1, dies.
#[tokio::test]
async fn a_frozen_task_holds_no_command() {
    let (node, images) = (Node::new(), Images::start().await);
    let mut plugin = node.launch().await;
    let task = node.task(&images.busybox()).sh(IDLE).build(&mut plugin).await;
    plugin.started(&task).await;
    let command = ["/bin/sh", "-c", "echo begun; exec sleep 999"];
    let mut session = plugin.exec_streaming(task.id(), &command, None).await.must("a session");
    session.until("begun", seconds(10)).await;
    let check = plugin.exec(task.id(), &command, seconds(2));
    let frozen = async {
        let running = || {
            let lines = node.traces().processes.into_iter();
            lines.filter(|(_, line)| line == "sleep 999").count()
        };
        assert!(eventually(seconds(10), || running() >= 2).await, "both commands run");
        freeze(&task, true);
        let refused = plugin.exec(task.id(), &["/bin/true"], seconds(10)).await.err().must("a refusal");
        assert!(refused.message().contains("the container is frozen"), "{refused}");
        let refused = plugin.exec_to_end(task.id(), &["/bin/true"], None, seconds(10)).await.must("a session");
        assert!(refused.stderr.contains("the container is frozen"), "{refused:?}");
    };
    let (check, ()) = tokio::join!(check, frozen);
    let check = check.must("ExecTask").result.must("a result");
    assert_eq!((check.exit_code, check.signal), (137, 9), "the timeout ends a frozen command");
    drop(session);
    // Only the monitor is left. The killed commands end when the task is thawed or destroyed.
    let left = || children(plugin.process.pid());
    assert!(eventually(seconds(20), || left().len() == 1).await, "{:?}", left());
    plugin.end(&task).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_task_runs_no_more_commands_than_the_operator_allows() {
    let (node, images) = (Node::new(), Images::start().await);
    let mut plugin = node.launch_with(json!({"exec": {"max_commands": 2}})).await;
    let (task, other) = (
        node.task(&images.busybox()).sh(IDLE).build(&mut plugin).await,
        node.task(&images.busybox()).sh(IDLE).build(&mut plugin).await,
    );
    for task in [&task, &other] {
        plugin.started(task).await;
    }
    let command = ["/bin/sh", "-c", "echo begun; exec sleep 1000"];
    let mut sessions = Vec::new();
    for _ in 0..2 {
        let mut session = plugin.exec_streaming(task.id(), &command, None).await.must("a session");
        session.until("begun", seconds(10)).await;
        sessions.push(session);
    }
    let refused = plugin.exec(task.id(), &["/bin/true"], seconds(10)).await.err().must("a refusal");
    assert!(refused.message().contains("2 commands run in this task already"), "{refused}");
    assert!(refused.message().contains("max_commands"), "{refused}");
    let refused = plugin.exec_streaming(task.id(), &["/bin/true"], None).await.err().must("a refusal");
    assert!(refused.message().contains("max_commands"), "{refused}");
    assert_eq!(plugin.sh(&other, "echo other").await, "other", "each task has its own limit");
    sessions.pop();
    let mut answer = plugin.exec(task.id(), &["/bin/true"], seconds(10)).await;
    // The plugin learns by and by that the client is gone.
    while answer.as_ref().is_err_and(|status| status.message().contains("max_commands")) {
        answer = plugin.exec(task.id(), &["/bin/true"], seconds(10)).await;
    }
    assert_eq!(answer.must("ExecTask").result.must("a result").exit_code, 0);
    drop(sessions);
    for task in [&task, &other] {
        plugin.end(task).await;
    }
    node.finish(plugin).await;
}

/// Number of commands that hang at the same time. `make exhaustion` runs 3,000.
fn hanging_commands() -> usize {
    std::env::var("OCI_RS_HANGING_COMMANDS").map_or(150, |count| count.parse().must("a number"))
}

/// The task stops every process that enters it, before or after the command begins.
#[tokio::test(flavor = "multi_thread")]
async fn hanging_commands_hold_no_thread_and_no_other_task() {
    let (node, images, count) = (Node::new(), Images::start().await, hanging_commands());
    let mut plugin = node.launch_with(json!({"exec": {"max_commands": count}})).await;
    let script = "echo up; while :; do for p in /proc/[0-9]*; do p=${p#/proc/}; \
                  [ $p = 1 ] || kill -STOP $p; done; done 2>/dev/null";
    let hostile = node.task(&images.busybox()).sh(script).resources(100, 64 + 4 * count as i64, 0);
    let hostile = hostile.build(&mut plugin).await;
    plugin.started(&hostile).await;
    hostile.stdout().contains("up", seconds(10)).await;
    let other = node.task(&images.busybox()).sh(IDLE).build(&mut plugin).await;
    let plugin = Arc::new(plugin);
    let mut calls = JoinSet::new();
    for _ in 0..count {
        let (plugin, id) = (plugin.clone(), hostile.id().to_owned());
        calls.spawn(async move {
            let command = vec!["/bin/sleep".to_owned(), "1000".to_owned()];
            let request = proto::driver::ExecTaskRequest {
                task_id: id,
                command,
                timeout: Some(prost_types::Duration { seconds: 1000, nanos: 0 }),
            };
            plugin.driver().exec_task(request).await.map(drop)
        });
    }
    let helpers = || children(plugin.process.pid()).len() - 1;
    // A command that does not begin within 30 seconds is refused.
    let mut refused = Vec::new();
    let mut all_begun = || {
        while let Some(ended) = calls.try_join_next() {
            refused.push(ended.must("no panic").err().must("no command ends by itself").message().to_owned());
        }
        helpers() + refused.len() >= count
    };
    assert!(eventually(seconds(300), &mut all_begun).await, "{} of {count} hang", helpers());
    let other_reason = refused.iter().find(|reason| !reason.contains("stopped the command before it began"));
    assert_eq!(other_reason, None);
    assert!(helpers() > count / 2, "{} of {count} hang", helpers());
    let threads = fs::read_dir(format!("/proc/{}/task", plugin.process.pid())).must("its threads").count();
    assert!(threads < 64, "{threads} threads for {count} commands");
    let begun = std::time::Instant::now();
    plugin.started(&other).await;
    let started = begun.elapsed();
    assert_eq!(plugin.sh(&other, "echo other").await, "other");
    let executed = begun.elapsed() - started;
    println!("beside {count} hanging commands: start {started:?}, exec {executed:?}");
    answers(&plugin, &other, &format!("beside {count} hanging commands")).await;
    plugin.end(&hostile).await;
    answers(&plugin, &other, &format!("after {count} hanging commands")).await;
    plugin.end(&other).await;
    calls.join_all().await;
    let helpers = || children(plugin.process.pid());
    assert!(eventually(seconds(60), || helpers().is_empty()).await, "{} helpers are left", helpers().len());
    node.finish(Arc::into_inner(plugin).must("the only owner")).await;
}
