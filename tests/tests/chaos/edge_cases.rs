//! Rare states at a task's start or end: frozen processes, infinite timeouts, another boot, an id that is being
//! removed.

use std::{fs, path::Path, time::Duration};

use fixtures::{
    busybox::Images,
    cgroup,
    hung_fs::{self, HungFs},
    must::Must,
    process,
    wait::{eventually, seconds},
};
use kit::{
    node::Node,
    plugin::{Plugin, PluginCommand},
    task::Task,
};
use proto::driver::TaskState;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::kill_points::POINT;

const IDLE: &str = "trap 'exit 7' TERM; >/up; sleep 1000 & wait";

async fn is_up(plugin: &Plugin, task: &Task) -> i32 {
    let up = || {
        let members = task.groups.members();
        members.iter().any(|pid| Path::new(&format!("/proc/{pid}/root/up")).exists())
    };
    assert!(eventually(seconds(10), up).await, "{:?}", task.groups.members());
    plugin.init_pid(task)
}

async fn freeze(task: &Task) {
    task.groups.freeze();
    assert!(eventually(seconds(5), || task.groups.is_frozen()).await, "the task is not frozen");
}

/// Checks that no process and no file of a task is left.
fn assert_nothing_left(node: &Node, task: &Task) {
    assert_eq!(task.groups.members(), Vec::<i32>::new());
    assert!(node.traces().files.is_empty(), "{}", node.traces());
}

#[tokio::test]
async fn a_frozen_task_can_be_stopped_and_destroyed() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    for destroyed in [false, true] {
        let task = node.task(&images.busybox()).sh(IDLE).build(&mut plugin).await;
        plugin.started(&task).await;
        is_up(&plugin, &task).await;
        freeze(&task).await;
        let end = async {
            if destroyed {
                plugin.destroy(task.id(), true).await.must("DestroyTask of a frozen task");
            } else {
                plugin.stop(task.id(), Duration::from_millis(100), "").await.must("StopTask of a frozen task");
            }
        };
        let (waited, ()) = tokio::join!(plugin.wait_raw(task.id()), end);
        assert_eq!(waited.must("WaitTask").result.must("a result").exit_code, 137);
        plugin.destroy(task.id(), true).await.must("DestroyTask");
    }
    node.finish(plugin).await;
}

/// No signal ends a process that hangs in the kernel. StopTask and DestroyTask then fail in bounded time. When the
/// process ends later, the driver completes the removal.
#[tokio::test]
async fn stop_of_a_task_that_hangs_in_the_kernel_fails_in_bounded_time() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let script = format!("echo up; cat /alloc/data/hung/{}", hung_fs::FILE);
    let task = node.task(&images.busybox()).sh(&script).build(&mut plugin).await;
    let Some(file_system) = HungFs::mount(&task.alloc.dir.join("alloc/data/hung")) else {
        return skipped("the kernel has no FUSE");
    };
    plugin.started(&task).await;
    let lookup = tokio::task::spawn_blocking(move || (file_system.wait_for_lookup(seconds(10)), file_system));
    let (opened, file_system) = lookup.await.must("a look at the file system");
    assert!(opened, "no process has opened the file");

    let refused = plugin.stop(task.id(), Duration::from_millis(100), "").await.err().must("an error of StopTask");
    assert!(refused.message().contains("did not end within"), "{refused}");
    assert_eq!(plugin.inspect(task.id()).await.must("InspectTask").task.must("a task").state(), TaskState::Running);
    let refused = plugin.destroy(task.id(), true).await.err().must("an error of DestroyTask");
    assert!(refused.message().contains("did not end within"), "{refused}");

    let (waited, ()) = tokio::join!(plugin.wait(task.id()), async { file_system.abort() });
    assert_eq!(waited.code, 137);
    assert!(eventually(seconds(10), || node.traces().files.is_empty()).await, "{}", node.traces());
    assert_nothing_left(&node, &task);
    plugin.destroy(task.id(), true).await.must("DestroyTask of a task that is gone");
    node.finish(plugin).await;
}

#[allow(clippy::print_stdout, reason = "a skipped test says why")]
fn skipped(why: &str) {
    println!("skipped: {why}");
}

/// The first answer was lost with the plugin. The repeated start fails before it makes a container.
#[tokio::test]
async fn a_failed_start_cleans_up_an_earlier_interrupted_start() {
    let node = Node::new();
    let images = Images::start().await;
    let armed = PluginCommand::new(node.root()).env(POINT, "start-before-answer:1");
    let mut plugin = node.launch_as(armed, json!({})).await;
    let mut task = node.task(&images.busybox()).sh(IDLE).build(&mut plugin).await;
    plugin.start(&task).await.err().must("the plugin's death");
    assert!(!task.groups.members().is_empty(), "its container runs on");
    plugin.process.kill().await;

    let plugin = node.launch().await;
    task.config.msgpack_driver_config = b"no msgpack".to_vec();
    plugin.start(&task).await.err().must("a refusal");
    assert_nothing_left(&node, &task);
    node.finish(plugin).await;
}

/// The plugin dies before it answers StartTask, and the agent never calls again for this task. The container of another
/// task stays, although its plugin does not know it yet either: the agent has made a call with its handle.
#[tokio::test]
async fn a_container_of_an_unanswered_start_is_removed_soon() {
    let node = Node::new();
    let images = Images::start().await;
    let armed = PluginCommand::new(node.root()).env(POINT, "start-before-answer:3");
    let mut plugin = node.launch_as(armed, json!({})).await;
    let mut tasks = Vec::new();
    for _ in 0..3 {
        tasks.push(node.task(&images.busybox()).sh(IDLE).build(&mut plugin).await);
    }
    let [waited, recovered, lost] = tasks.as_slice() else { panic!("three tasks") };
    let waited_handle = plugin.started(waited).await;
    let directories = || fs::read_dir(node.state_dir().join("tasks")).must("the tasks' directory").flatten();
    let unanswered = || directories().any(|task| task.path().join("unanswered").exists());
    assert!(unanswered());
    tokio::select! {
        ended = plugin.wait_raw(waited.id()) => panic!("the task ended: {ended:?}"),
        answered = eventually(seconds(10), || !unanswered()) => assert!(answered, "WaitTask needs the handle"),
    }
    let recovered_handle = plugin.started(recovered).await;
    plugin.start(lost).await.err().must("the plugin's death");
    assert!(!lost.groups.members().is_empty(), "its container runs on");
    plugin.process.kill().await;

    let gc = json!({"gc": {"dangling_containers": {"unanswered_grace": "500ms"}}});
    let plugin = node.launch_with(gc).await;
    plugin.recover(&recovered_handle).await.must("RecoverTask");
    assert!(eventually(seconds(10), || lost.groups.members().is_empty()).await, "{:?}", lost.groups.members());
    plugin.recover(&waited_handle).await.must("RecoverTask, however late");
    for task in [waited, recovered] {
        assert!(!task.groups.members().is_empty());
        plugin.end(task).await;
    }
    assert_nothing_left(&node, lost);
    node.finish(plugin).await;
}

/// Go's longest duration, and a duration beyond the range of any clock.
#[tokio::test]
async fn an_infinite_kill_timeout_waits_for_the_task() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    for timeout in [Duration::from_nanos(i64::MAX.unsigned_abs()), Duration::from_secs(i64::MAX.unsigned_abs())] {
        let script = "trap '>/local/signalled' TERM; >/up; until [ -e /local/signalled ] && [ -e /local/go ]; do \
                      sleep 0.02; done; exit 9";
        let task = node.task(&images.busybox()).sh(script).build(&mut plugin).await;
        plugin.started(&task).await;
        is_up(&plugin, &task).await;
        let later = async {
            assert!(
                eventually(seconds(10), || task.dir().join("local/signalled").exists()).await,
                "the signal was not sent"
            );
            fs::write(task.dir().join("local/go"), "").must("tell the task to end");
        };
        let (stopped, ()) = tokio::join!(plugin.stop(task.id(), timeout, ""), later);
        stopped.must("StopTask");
        assert_eq!(plugin.wait(task.id()).await.code, 9);
        plugin.destroy(task.id(), true).await.must("DestroyTask");
    }
    node.finish(plugin).await;
}

fn rename_boot(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Object(fields) => {
            for (name, value) in fields {
                if name == "boot_id" {
                    *value = json!("00000000-0000-4000-8000-000000000000");
                } else {
                    rename_boot(value);
                }
            }
        }
        serde_json::Value::Array(items) => items.iter_mut().for_each(rename_boot),
        _ => {}
    }
}

/// After a reboot, a pid and its start time may exist again. The boot id does not.
#[tokio::test]
async fn a_process_recorded_in_another_boot_is_never_signalled() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh(IDLE).build(&mut plugin).await;
    let handle = plugin.started(&task).await;
    let init = is_up(&plugin, &task).await;
    plugin.process.kill().await;
    for directory in fs::read_dir(node.state_dir().join("tasks")).must("the tasks' directory").flatten() {
        for name in ["monitor.json", "container.json"] {
            let path = directory.path().join(name);
            let mut record = serde_json::from_slice(&fs::read(&path).must("a record")).must("a record");
            let before = format!("{record}");
            rename_boot(&mut record);
            assert_ne!(before, format!("{record}"), "{name} names the boot");
            fs::write(&path, format!("{record}")).must("rewrite a record");
        }
    }
    let plugin = node.launch().await;
    // Both an error and a lost exit status mean that the task no longer runs.
    if plugin.recover(&handle).await.is_ok() {
        let exit = plugin.wait(task.id()).await;
        assert!(exit.code != 0 && !exit.err.is_empty(), "{exit:?}");
    }
    plugin.exec(task.id(), &["/bin/true"], seconds(5)).await.err().must("an error of ExecTask");
    plugin.stop(task.id(), Duration::ZERO, "").await.must("StopTask");
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    let state = process::status_field(init, "State").unwrap_or_default();
    assert!(!state.is_empty() && !state.starts_with('Z'), "the other process was killed: {state:?}");
    kill_process(Pid::from_raw(init).must("a pid"), Signal::KILL).must("kill the other process");
    let own = plugin.process.pid();
    eventually(seconds(5), || node.traces().processes.iter().all(|(pid, _)| *pid == own)).await;
    // The cgroups were in use when the driver removed the task.
    for group in cgroup::find(&task.alloc.id).iter().filter(|group| !task.groups.own.contains(group)) {
        // A killed process leaves its cgroup a moment later.
        let removed = eventually(seconds(5), || fs::remove_dir(group).is_ok() || !group.exists()).await;
        assert!(removed, "{}: {:?}", group.display(), fs::read_to_string(group.join("cgroup.procs")));
    }
    node.finish(plugin).await;
}

/// Nomad calls DestroyTask before the next StartTask, but a call can be delayed.
#[tokio::test]
async fn a_task_id_can_be_reused_only_after_its_task_is_removed() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh(IDLE).without_logs().build(&mut plugin).await;
    for delay in [0, 1, 5, 20, 60] {
        plugin.started(&task).await;
        let again = async {
            tokio::time::sleep(Duration::from_millis(delay)).await;
            plugin.start(&task).await
        };
        let (destroyed, again) = tokio::join!(plugin.destroy(task.id(), true), again);
        destroyed.must("DestroyTask");
        match again {
            Ok(_) => {
                is_up(&plugin, &task).await;
                plugin.end(&task).await;
            }
            Err(status) => assert!(status.message().contains("already started"), "{status}"),
        }
        assert_nothing_left(&node, &task);
    }
    node.finish(plugin).await;
}

/// After a plugin kill, DestroyTask and StartTask of the same id run concurrently.
#[tokio::test]
async fn destroy_and_start_of_the_same_id_after_a_plugin_kill_leave_nothing() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh(IDLE).without_logs().build(&mut plugin).await;
    for delay in [0, 1, 5, 20] {
        plugin.started(&task).await;
        plugin.process.kill().await;
        plugin = node.launch().await;
        let again = async {
            tokio::time::sleep(Duration::from_millis(delay)).await;
            plugin.start(&task).await
        };
        let (destroyed, again) = tokio::join!(plugin.destroy(task.id(), true), again);
        destroyed.must("DestroyTask");
        match again {
            // The start ran before or after the removal, never during it.
            Ok(_) if !task.groups.members().is_empty() => {
                is_up(&plugin, &task).await;
                plugin.end(&task).await;
            }
            Ok(_) => plugin.destroy(task.id(), true).await.must("DestroyTask"),
            Err(status) => {
                let refused =
                    status.message().contains("already started") || status.message().contains("stopped while");
                assert!(refused, "{status}");
                plugin.destroy(task.id(), true).await.must("DestroyTask");
            }
        }
        assert_nothing_left(&node, &task);
    }
    node.finish(plugin).await;
}

/// StopTask of a removed task succeeds: an agent would repeat a failed stop for minutes.
#[tokio::test]
async fn concurrent_stop_wait_destroy_signal_and_exec_all_succeed() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    for round in 0..12 {
        let task = node.task(&images.busybox()).sh(IDLE).without_logs().build(&mut plugin).await;
        plugin.started(&task).await;
        is_up(&plugin, &task).await;
        let timeout = Duration::from_millis([0, 1, 3000][round % 3]);
        let (first, second, waited, removed, again, ..) = tokio::join!(
            plugin.stop(task.id(), timeout, ""),
            plugin.stop(task.id(), timeout, "SIGKILL"),
            plugin.wait_raw(task.id()),
            plugin.destroy(task.id(), true),
            plugin.destroy(task.id(), true),
            plugin.signal(task.id(), "SIGHUP"),
            plugin.exec(task.id(), &["/bin/true"], seconds(5)),
        );
        for (what, done) in [("stop", first), ("stop", second), ("destroy", removed), ("destroy", again)] {
            done.must(what);
        }
        // A call after the removal gets the error that the task is unknown.
        if let Ok(answer) = waited {
            assert!([7, 137].contains(&answer.result.must("a result").exit_code));
        }
        assert_nothing_left(&node, &task);
    }
    node.finish(plugin).await;
}
