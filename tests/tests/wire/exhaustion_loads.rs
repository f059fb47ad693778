//! Loads of one task, and of the plugin's clients: another task is served while the load is on, and afterwards.
//!
//! `make exhaustion` prints how long the answers take. A test only needs the answers, because a busy machine is slow.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use fixtures::{
    busybox::Images,
    must::Must,
    wait::{eventually, patient, seconds, within},
};
use kit::{node::Node, plugin::Plugin, task::Task};
use proto::driver::{TaskEventsRequest, TaskStatsRequest, WaitTaskRequest};
use rustix::{
    fs::{CWD, Mode, mkfifoat},
    mount::{MountFlags, UnmountFlags, mount, unmount},
    process::{Pid, Resource, Rlimit, prlimit},
};
use serde_json::json;
use tokio::task::JoinSet;

const IDLE: &str = "while :; do sleep 1000; done";
/// Answers that are measured of each load.
const ROUNDS: usize = 10;

/// Asks for the state of another task, and runs a command in it. Prints how long that takes.
#[allow(clippy::print_stdout)]
pub(crate) async fn answers(plugin: &Plugin, other: &Task, when: &str) {
    let (mut inspected, mut executed) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        plugin.inspect(other.id()).await.must("InspectTask");
        inspected.push(begun.elapsed());
        let begun = Instant::now();
        let command = plugin.exec(other.id(), &["/bin/true"], seconds(10)).await.must("ExecTask");
        assert_eq!(command.result.must("a result").exit_code, 0, "{when}");
        executed.push(begun.elapsed());
    }
    println!("{when}: InspectTask {}, ExecTask {}", figures(inspected), figures(executed));
}

/// The median and the longest.
fn figures(mut times: Vec<Duration>) -> String {
    times.sort();
    let milliseconds = |time: Option<&Duration>| time.map_or(0.0, |time| time.as_secs_f64() * 1000.0);
    format!("{:.1} ms (at most {:.1})", milliseconds(times.get(times.len() / 2)), milliseconds(times.last()))
}

/// What a task does; it says `on` when the resource is used up.
const LOADS: [(&str, &str); 5] = [
    ("processes", "(sleep 1; echo on) & while :; do (while :; do sleep 1000 & done) 2>/dev/null; done"),
    ("memory", "while :; do tail /dev/zero; echo on; done 2>/dev/null"),
    ("processors", "for i in 1 2 3 4 5 6 7 8; do while :; do :; done & done; echo on; wait"),
    (
        "inodes",
        "cd /tmp; i=0; while echo > f$i; do i=$((i + 1)); done 2>/dev/null; echo on; \
         while :; do rm -f f0; echo > f0; done",
    ),
    (
        "pages on the disk",
        "cd /tmp; while dd if=/dev/zero of=big bs=1M count=40 conv=fsync; do echo on; done 2>/dev/null; sleep 1000",
    ),
];

/// A file system with few inodes. Dropped, it is unmounted.
struct Disk(PathBuf);

impl Disk {
    fn mount(path: PathBuf) -> Self {
        fs::create_dir(&path).must("a mount point");
        let options = Some(c"size=256m,nr_inodes=2000,mode=0700");
        mount("tmpfs", &path, "tmpfs", MountFlags::NODEV, options).must("mount a tmpfs");
        Self(path)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        unmount(&self.0, UnmountFlags::DETACH).ok();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_uses_up_a_resource_holds_no_other_task() {
    let (node, images) = (Node::new(), Images::start().await);
    let disk = Disk::mount(node.data_dir());
    let mut plugin = node.launch_with(json!({"image_limits": {"free_mib": 4}})).await;
    let other = node.task(&images.busybox()).sh(IDLE).build(&mut plugin).await;
    plugin.started(&other).await;
    answers(&plugin, &other, "without a load").await;
    for (load, script) in LOADS {
        let hostile = node.task(&images.busybox()).sh(script).option("pids_limit", json!(200));
        let hostile = hostile.resources(100, 64, 0).build(&mut plugin).await;
        plugin.started(&hostile).await;
        hostile.stdout().contains("on\n", seconds(60)).await;
        answers(&plugin, &other, &format!("beside a load of {load}")).await;
        plugin.end(&hostile).await;
        answers(&plugin, &other, &format!("after a load of {load}")).await;
        // What was used up is there again.
        let next = node.task(&images.busybox()).sh("exit 3").build(&mut plugin).await;
        plugin.started(&next).await;
        assert_eq!(plugin.wait(next.id()).await.code, 3, "after a load of {load}");
        plugin.end(&next).await;
    }
    plugin.end(&other).await;
    assert!(plugin.shutdown().await.success());
    drop(disk);
    node.finish_without_plugin().await;
}

/// The output goes to a reader that is as fast as it can.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_output_holds_no_other_task() {
    let (node, images) = (Node::new(), Images::start().await);
    let mut plugin = node.launch().await;
    let other = node.task(&images.busybox()).sh(IDLE).build(&mut plugin).await;
    let mut flood = node.task(&images.busybox()).sh("yes").without_logs().build(&mut plugin).await;
    let fifo = flood.alloc.dir.join("alloc/logs/.main.stdout.fifo");
    mkfifoat(CWD, &fifo, Mode::from_raw_mode(0o600)).must("a FIFO");
    flood.config.stdout_path = fifo.to_string_lossy().into_owned();
    let mut reader = Command::new("cat").arg(&fifo).stdout(Stdio::null()).spawn().must("start cat");
    for task in [&flood, &other] {
        plugin.started(task).await;
    }
    let has_read = || {
        let read = fs::read_to_string(format!("/proc/{}/io", reader.id())).unwrap_or_default();
        let bytes = read.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse::<u64>().ok());
        bytes.is_some_and(|bytes| bytes > 100 << 20)
    };
    assert!(eventually(seconds(60), has_read).await, "no flood");
    answers(&plugin, &other, "beside a flood of output").await;
    plugin.end(&flood).await;
    answers(&plugin, &other, "after a flood of output").await;
    plugin.end(&other).await;
    assert!(reader.wait().must("the reader's end").success());
    node.finish(plugin).await;
}

/// Clients that ask and do not read, and starts that fail at once: each has events.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_events_and_calls_holds_no_other_task() {
    const STREAMS: usize = 200;
    const STARTS: usize = 200;
    let (node, images) = (Node::new(), Images::start().await);
    let mut plugin = node.launch().await;
    let other = node.task(&images.busybox()).sh(IDLE).build(&mut plugin).await;
    plugin.started(&other).await;
    let failing = node.task(&images.missing()).without_logs().build(&mut plugin).await;
    let plugin = Arc::new(plugin);
    let (mut unread, mut waits) = (Vec::new(), JoinSet::new());
    let mut idle = plugin.driver_of_another_connection().await;
    for _ in 0..STREAMS {
        unread.push(idle.task_events(TaskEventsRequest {}).await.must("TaskEvents"));
        let (plugin, request) = (plugin.clone(), WaitTaskRequest { task_id: other.id().to_owned() });
        waits.spawn(async move { plugin.driver().wait_task(request).await.map(drop) });
    }
    let mut stats = Vec::new();
    for _ in 0..STREAMS {
        let interval = Some(prost_types::Duration::try_from(patient(Duration::from_millis(100))).must("a duration"));
        let request = TaskStatsRequest { task_id: other.id().to_owned(), collection_interval: interval };
        stats.push(idle.task_stats(request).await.must("TaskStats"));
    }
    let mut starts = JoinSet::new();
    for _ in 0..STARTS {
        let (plugin, task) = (plugin.clone(), failing.restarted());
        starts.spawn(async move { plugin.start(&task).await.err().must("a failure") });
    }
    answers(&plugin, &other, "beside a flood of events and calls").await;
    within(seconds(60), "the failures", starts.join_all()).await;
    drop((unread, stats));
    answers(&plugin, &other, "after a flood of events and calls").await;
    plugin.end(&other).await;
    within(seconds(60), "the answers of WaitTask", waits.join_all()).await;
    node.finish(Arc::into_inner(plugin).must("the only owner")).await;
}

/// Sets how many descriptors the plugin may have. Returns the limit before.
fn limit_descriptors(plugin: &Plugin, current: Option<u64>) -> Rlimit {
    let pid = Pid::from_raw(plugin.process.pid());
    let before = rustix::process::getrlimit(Resource::Nofile);
    prlimit(pid, Resource::Nofile, Rlimit { current, maximum: before.maximum }).must("a limit")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_without_descriptors_refuses_commands_and_answers_calls() {
    let (node, images) = (Node::new(), Images::start().await);
    let mut plugin = node.launch().await;
    let (task, other) = (
        node.task(&images.busybox()).sh(IDLE).build(&mut plugin).await,
        node.task(&images.busybox()).sh(IDLE).build(&mut plugin).await,
    );
    for task in [&task, &other] {
        plugin.started(task).await;
    }
    assert_eq!(plugin.sh(&other, "echo before").await, "before");
    let before = limit_descriptors(&plugin, Some(plugin.descriptors().len() as u64 + 40));
    let command = ["/bin/sh", "-c", "echo begun; exec sleep 1000"];
    let mut sessions = Vec::new();
    let refused = loop {
        match plugin.exec(task.id(), &["/bin/true"], seconds(10)).await {
            Err(refused) => break refused,
            Ok(_) => assert!(sessions.len() < 100, "no limit is reached"),
        }
        if let Ok(session) = plugin.exec_streaming(task.id(), &command, None).await {
            sessions.push(session);
        }
    };
    assert!(refused.message().contains("os error 24"), "{refused}");
    for _ in 0..ROUNDS {
        plugin.inspect(other.id()).await.must("InspectTask");
        plugin.stats(other.id(), seconds(1)).await.must("TaskStats");
    }
    drop(sessions);
    // The plugin learns by and by that the clients are gone.
    let mut answer = plugin.exec(other.id(), &["/bin/true"], seconds(10)).await;
    while answer.as_ref().is_err_and(|status| status.message().contains("os error 24")) {
        answer = plugin.exec(other.id(), &["/bin/true"], seconds(10)).await;
    }
    assert_eq!(answer.must("ExecTask").result.must("a result").exit_code, 0);
    limit_descriptors(&plugin, before.current);
    answers(&plugin, &other, "after a plugin without descriptors").await;
    for task in [&task, &other] {
        plugin.end(task).await;
    }
    node.finish(plugin).await;
}
