//! Concurrent calls, unusual states of the host, and timeouts.

use std::{
    fs,
    time::{Duration, Instant},
};

use fixtures::{
    busybox::Images,
    cgroup,
    image::{Entry, Layer},
    must::Must,
    process,
    registry::{Action, Fault},
    wait::{eventually, patient, seconds},
};
use kit::{
    calls::recoverable,
    node::Node,
    plugin::{KILL_ON_VIOLATION, PluginCommand},
};
use serde_json::json;

const IDLE: &str = "while :; do sleep 1000; done";

/// A pull without progress ends at its timeout, and the restart policy may try again.
#[tokio::test]
async fn a_pull_ends_at_its_timeout() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    images.with(|registry| registry.fault(Fault::on("/blobs/", Action::Stall(1000))));
    let task =
        node.task(&images.busybox()).sh("true").option("image_pull_timeout", json!("3s")).build(&mut plugin).await;
    let begun = Instant::now();
    let status = plugin.start(&task).await.err().must("a pull that stands still");
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(2900) && took < patient(seconds(40)), "{took:?}");
    assert!(recoverable(&status), "{status}");
    assert!(status.message().contains("3s") || status.message().contains("3 s"), "{status}");
    images.with(|registry| registry.heal());
    let again = node.task(&images.busybox()).sh("true").build(&mut plugin).await;
    plugin.started(&again).await;
    plugin.wait(again.id()).await;
    plugin.destroy(again.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

/// An agent that stops a job during its pull must not wait for the pull.
#[tokio::test]
async fn a_stop_ends_a_running_start() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    images.with(|registry| registry.fault(Fault::on("/blobs/", Action::Stall(1000))));
    for forced in [false, true] {
        let task = node.task(&images.busybox()).sh("true").build(&mut plugin).await;
        let later = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            if forced {
                plugin.destroy(task.id(), true).await.must("DestroyTask during a start");
            } else {
                plugin.stop(task.id(), seconds(1), "").await.must("StopTask during a start");
            }
        };
        let begun = Instant::now();
        let (started, ()) = tokio::join!(plugin.start(&task), later);
        started.err().must("a start that was cut short");
        assert!(begun.elapsed() < patient(seconds(60)), "{:?}", begun.elapsed());
        plugin.inspect(task.id()).await.err().must("an unknown task");
    }
    assert!(node.traces().files.is_empty(), "{}", node.traces());
    node.finish(plugin).await;
}

/// An agent does not destroy a task after a failed start. An abandoned start whose container runs already is therefore
/// answered after its removal. A plugin that is killed in between has not answered.
#[tokio::test]
async fn an_abandoned_start_is_answered_after_its_cleanup() {
    let node = Node::new();
    let images = Images::start().await;
    let trace = node.root().join("trace");
    let launch = PluginCommand::new(node.root())
        .env("OCI_RS_FAILPOINT", "owner-before-remove:1")
        .env("OCI_RS_FAILPOINT_TRACE", &trace.to_string_lossy());
    let mut plugin = node.launch_as(launch, json!({"rootfs": "copy"})).await;
    // The copy takes longer than the request for the stop.
    let files = Layer::of((0..12_000).map(|number| Entry::file(format!("many/{number}"), "x")));
    let task = node.task(&images.with_layers("many", [files])).sh("sleep 1000").build(&mut plugin).await;
    let stop = async {
        let copying = || fs::read_to_string(&trace).is_ok_and(|trace| trace.contains("root-before-copy"));
        assert!(eventually(seconds(20), copying).await, "the container is not being made");
        // The plugin may have been killed before its answer.
        plugin.stop(task.id(), Duration::ZERO, "").await.ok();
    };
    let (started, ()) = tokio::join!(plugin.start(&task), stop);
    let status = started.err().must("a start that was given up");
    assert!(!status.message().contains("stopped while"), "{status}");
    plugin.process.kill().await;
    let plugin = node.launch().await;
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    assert!(node.traces().files.is_empty(), "{}", node.traces());
    node.finish(plugin).await;
}

/// An agent takes any error of WaitTask for the task's end, so WaitTask must return the real exit status after a forced
/// destroy.
#[tokio::test]
async fn a_wait_returns_after_a_forced_destroy() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh(IDLE).build(&mut plugin).await;
    plugin.started(&task).await;
    let later = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let (first, second) = tokio::join!(plugin.destroy(task.id(), true), plugin.destroy(task.id(), true));
        first.must("DestroyTask");
        second.must("DestroyTask");
    };
    let (waited, ()) = tokio::join!(plugin.wait_raw(task.id()), later);
    let answer = waited.must("WaitTask across DestroyTask");
    assert_eq!(answer.result.must("a result").exit_code, 137);
    node.finish(plugin).await;
}

/// logmon may be late or dead. A start must not wait for a reader.
#[tokio::test]
async fn a_log_without_a_reader_does_not_block_the_start() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let mut task = node.task(&images.busybox()).sh("seq 1 100000; exit 0").without_logs().build(&mut plugin).await;
    for (path, name) in [(&mut task.config.stdout_path, "stdout"), (&mut task.config.stderr_path, "stderr")] {
        let fifo = task.alloc.dir.join(format!("alloc/logs/.main.{name}.fifo"));
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::from_raw_mode(0o600)).must("a FIFO");
        *path = fifo.to_string_lossy().into_owned();
    }
    let begun = Instant::now();
    plugin.started(&task).await;
    assert!(begun.elapsed() < patient(seconds(20)), "{:?}", begun.elapsed());
    // The task blocks on a full FIFO, and it can still be stopped.
    plugin.stop(task.id(), Duration::from_millis(200), "").await.must("StopTask");
    plugin.wait(task.id()).await;
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_missing_log_fifo_fails_the_start() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let mut task = node.task(&images.busybox()).sh("true").without_logs().build(&mut plugin).await;
    task.config.stdout_path = task.alloc.dir.join("alloc/logs/absent.fifo").to_string_lossy().into_owned();
    let status = plugin.start(&task).await.err().must("a refusal");
    assert!(status.message().contains("absent.fifo"), "{status}");
    node.finish(plugin).await;
}

/// The client may remove an allocation's directory before the driver is asked to destroy the task.
#[tokio::test]
async fn destroy_does_not_need_the_allocation() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh("exit 3").build(&mut plugin).await;
    plugin.started(&task).await;
    assert_eq!(plugin.wait(task.id()).await.code, 3);
    assert_eq!(task.alloc.release(), Vec::<String>::new(), "nothing holds the allocation after the task's end");
    fs::remove_dir_all(&task.alloc.dir).must("remove the allocation");
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

/// After a reboot, the state directory is empty and every process is gone.
#[tokio::test]
async fn after_a_reboot_recovery_fails_and_leftovers_are_removed() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh("while :; do sleep 0.01; done").build(&mut plugin).await;
    let handle = plugin.started(&task).await;
    plugin.process.kill().await;
    for (pid, _) in node.traces().processes {
        if let Some(pid) = rustix::process::Pid::from_raw(pid) {
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).ok();
        }
    }
    fixtures::wait::eventually(seconds(3), || node.traces().processes.is_empty()).await;
    fs::remove_dir_all(node.state_dir()).must("empty the state directory");
    // A reboot removes cgroups too. The client's cgroups stay here, because the client would make them again.
    for group in cgroup::find(&task.alloc.id).iter().filter(|group| !task.groups.own.contains(group)) {
        // A killed process leaves its cgroup a moment later.
        let removed = fixtures::wait::eventually(seconds(5), || fs::remove_dir(group).is_ok() || !group.exists()).await;
        assert!(removed, "{}: {:?}", group.display(), fs::read_to_string(group.join("cgroup.procs")));
    }

    let plugin = node.launch().await;
    plugin.recover(&handle).await.err().must("nothing to recover");
    // Although the agent makes no further call, the lost task's writable layer and its lease on the image are removed.
    let swept = fixtures::wait::eventually(seconds(5), || node.traces().files.is_empty()).await;
    assert!(swept, "{}", node.traces());
    let again = task.restarted();
    plugin.started(&again).await;
    plugin.end(&again).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn the_longest_arguments_and_variables_of_the_kernel_work() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let long = "x".repeat(100_000);
    let task = node.task(&images.busybox()).sh("echo ${#LONG}").env("LONG", &long).build(&mut plugin).await;
    plugin.started(&task).await;
    plugin.wait(task.id()).await;
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    assert_eq!(task.stdout().all(seconds(5)).await, "100000\n");
    // One variable can have 128 KiB.
    let task = node.task(&images.busybox()).sh("true").env("LONG", &"x".repeat(200_000)).build(&mut plugin).await;
    let status = plugin.start(&task).await.err().must("more than the kernel takes");
    assert!(!recoverable(&status) && status.message().to_lowercase().contains("long"), "{status}");
    node.finish(plugin).await;
}

#[tokio::test]
async fn init_reaps_zombies_and_forwards_signals() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let script = "trap 'echo term; exit 12' TERM; sleep 100000 & (sh -c 'sleep 0.1; : >/tmp/gone' &) ; echo ready; \
                  while :; do wait; done";
    let task = node.task(&images.busybox()).sh(script).option("init", json!(true)).build(&mut plugin).await;
    plugin.started(&task).await;
    task.stdout().contains("ready", seconds(5)).await;
    // Process 1 is not the command, and no orphan stays a zombie.
    assert_ne!(plugin.sh(&task, "echo $(tr '\\0' ' ' < /proc/1/cmdline)").await.trim(), format!("/bin/sh -c {script}"));
    let zombies = "until [ -e /tmp/gone ]; do sleep 0.1; done
        for i in $(seq 100); do
            n=$(grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l)
            [ $n = 0 ] && break
            sleep 0.1
        done
        echo $n";
    assert_eq!(plugin.sh(&task, zombies).await.trim(), "0");
    plugin.stop(task.id(), seconds(10), "").await.must("StopTask");
    assert_eq!(plugin.wait(task.id()).await.code, 12);
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

/// The processes that made the container are reaped: a zombie would count for the task's limit of processes.
#[tokio::test]
async fn the_monitors_only_child_is_the_task() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    for terminal in [false, true] {
        let task = node.task(&images.busybox()).sh(IDLE).option("tty", json!(terminal)).build(&mut plugin).await;
        plugin.started(&task).await;
        let (monitor, init) = (plugin.monitor_pid(&task), plugin.init_pid(&task));
        let alone = || process::children(monitor).iter().all(|(pid, _)| *pid == init);
        assert!(eventually(seconds(5), alone).await, "{:?}", process::children(monitor));
        plugin.end(&task).await;
    }
    node.finish(plugin).await;
}

/// Every task has a monitor, so it must use very little memory.
#[tokio::test]
async fn the_monitor_uses_little_memory() {
    let node = Node::new();
    let command = PluginCommand::new(node.root()).without(KILL_ON_VIOLATION);
    let mut plugin = node.launch_as(command, json!({})).await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh(IDLE).build(&mut plugin).await;
    plugin.started(&task).await;
    let monitor = plugin.monitor_pid(&task);
    assert_eq!(process::status_field(monitor, "Threads").as_deref(), Some("1"));
    let rollup = fs::read_to_string(format!("/proc/{monitor}/smaps_rollup")).must("the monitor's memory");
    // The pages of the sealed file are shared. The rest is mostly the binary's relocated tables, which are larger in a
    // dev build.
    let anonymous =
        rollup.lines().find_map(|line| line.strip_prefix("Anonymous:")?.split_whitespace().next()?.parse::<u64>().ok());
    let anonymous = anonymous.must("a line about memory");
    assert!(anonymous < 1280, "{anonymous} KiB are the monitor's own");
    let environ = fs::read(format!("/proc/{monitor}/environ")).must("the monitor's environment");
    assert!(environ.is_empty(), "{}", String::from_utf8_lossy(&environ));
    let directory = fs::read_dir(format!("/proc/{monitor}/fd")).must("the monitor's descriptors");
    let open: Vec<String> = directory
        .flatten()
        .filter_map(|fd| Some(fs::read_link(fd.path()).ok()?.to_string_lossy().into_owned()))
        .collect();
    assert!(
        open.len() <= 10 && !open.iter().any(|target| target.contains("secrets") || target.contains("private")),
        "{open:?}"
    );
    plugin.end(&task).await;
    node.finish(plugin).await;
}
