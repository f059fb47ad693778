//! The lifecycle of a task: start, wait, inspect, signal, destroy.

use std::time::{Duration, Instant, SystemTime};

use fixtures::{
    busybox::Images,
    must::Must,
    wait::{all, eventually, seconds},
};
use kit::node::Node;
use proto::driver::{StartTaskRequest, TaskState};
use tonic::Code;

/// Go's zero time.
const GO_ZERO: i64 = -62_135_596_800;

#[tokio::test]
async fn exit_codes_are_reported() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    for code in [0, 1, 7, 255] {
        let task = node.task(&images.busybox()).sh(&format!("exit {code}")).build(&mut plugin).await;
        plugin.started(&task).await;
        let exit = plugin.wait(task.id()).await;
        assert_eq!((exit.code, exit.signal, exit.oom), (code, 0, false));
        assert_eq!(exit.err.is_empty(), code == 0, "a failed task has a message: {exit:?}");
        plugin.destroy(task.id(), true).await.must("DestroyTask");
    }
    node.finish(plugin).await;
}

#[tokio::test]
async fn wait_works_before_and_after_the_end_and_for_several_callers() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh("read line < /local/go; exit 5").build(&mut plugin).await;
    let go = task.dir().join("local/go");
    rustix::fs::mkfifoat(rustix::fs::CWD, &go, rustix::fs::Mode::from_raw_mode(0o666)).must("a FIFO");
    plugin.started(&task).await;
    let release = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        tokio::task::spawn_blocking(move || std::fs::write(go, "x\n")).await.must("a thread").must("release the task");
    };
    let (first, second, ()) = tokio::join!(plugin.wait(task.id()), plugin.wait(task.id()), release);
    assert_eq!((first.code, &first), (5, &second));
    for _ in 0..3 {
        assert_eq!(plugin.wait(task.id()).await, first);
    }
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    plugin.wait_raw(task.id()).await.err().must("nothing to wait for after DestroyTask");
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_cancelled_wait_does_not_affect_other_callers() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh("sleep 1000").build(&mut plugin).await;
    plugin.started(&task).await;
    for _ in 0..20 {
        let short = tokio::time::timeout(Duration::from_millis(10), plugin.wait_raw(task.id())).await;
        assert!(short.is_err(), "the task runs");
    }
    plugin.end(&task).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn calls_for_unknown_task_ids_fail() {
    let node = Node::new();
    let plugin = node.launch().await;
    // An agent would repeat these two calls for minutes if they failed.
    plugin.stop("unknown", seconds(1), "").await.must("StopTask of an unknown task");
    plugin.destroy("unknown", true).await.must("DestroyTask of an unknown task");
    plugin.destroy("unknown", false).await.must("DestroyTask of an unknown task");
    let mut answers = vec![
        ("WaitTask", plugin.wait_raw("unknown").await.err()),
        ("InspectTask", plugin.inspect("unknown").await.err()),
        ("SignalTask", plugin.signal("unknown", "SIGHUP").await.err()),
        ("ExecTask", plugin.exec("unknown", &["true"], seconds(1)).await.err()),
    ];
    let stats = match plugin.stats("unknown", seconds(1)).await {
        Ok(mut stream) => stream.message().await.err(),
        Err(status) => Some(status),
    };
    answers.push(("TaskStats", stats));
    let streaming = match plugin.exec_to_end("unknown", &["true"], None, seconds(5)).await {
        Ok(outcome) => panic!("{outcome:?}"),
        Err(status) => Some(status),
    };
    answers.push(("ExecTaskStreaming", streaming));
    for (call, status) in answers {
        let status = status.must(call);
        // An agent would take these two errors for a dead plugin.
        assert!(!matches!(status.code(), Code::Unavailable | Code::Cancelled), "{call}: {status}");
        assert!(status.message().contains("unknown"), "{call} names the id: {status}");
    }
    node.finish(plugin).await;
}

#[tokio::test]
async fn concurrent_starts_of_one_id_start_one_task() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh("sleep 1000").build(&mut plugin).await;
    let (first, second) = tokio::join!(plugin.start(&task), plugin.start(&task));
    let refused = match (first, second) {
        (Ok(_), Err(refused)) | (Err(refused), Ok(_)) => refused,
        other => panic!("one of two starts must win: {other:?}"),
    };
    assert!(refused.message().contains("already"), "{refused}");
    let third = plugin.start(&task).await.err().must("a third start");
    assert!(third.message().contains("already"), "{third}");
    plugin.end(&task).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn destroy_needs_force_while_the_task_runs() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh("sleep 1000").build(&mut plugin).await;
    plugin.started(&task).await;
    plugin.destroy(task.id(), false).await.err().must("a refusal to destroy a running task");
    assert_eq!(plugin.sh(&task, "echo alive").await, "alive");
    plugin.destroy(task.id(), true).await.must("DestroyTask by force");
    assert!(node.traces().processes.iter().all(|(pid, _)| *pid == plugin.process.pid()), "{}", node.traces());
    plugin.inspect(task.id()).await.err().must("forgotten");
    plugin.destroy(task.id(), true).await.must("DestroyTask again");
    node.finish(plugin).await;
}

#[tokio::test]
async fn destroy_without_force_removes_an_ended_task() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh("exit 0").build(&mut plugin).await;
    plugin.started(&task).await;
    plugin.wait(task.id()).await;
    plugin.destroy(task.id(), false).await.must("DestroyTask of an ended task");
    node.finish(plugin).await;
}

#[tokio::test]
async fn inspect_reports_running_and_exited() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh("read line < /local/go; exit 3").build(&mut plugin).await;
    let go = task.dir().join("local/go");
    rustix::fs::mkfifoat(rustix::fs::CWD, &go, rustix::fs::Mode::from_raw_mode(0o666)).must("a FIFO");
    plugin.started(&task).await;
    let now =
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).must("a clock after 1970").as_secs().cast_signed();
    let running = plugin.inspect(task.id()).await.must("InspectTask").task.must("a task");
    assert_eq!((running.id.as_str(), running.name.as_str(), running.state()), (task.id(), "main", TaskState::Running));
    assert!((running.started_at.must("a start").seconds - now).abs() <= 5);
    assert_eq!(running.completed_at.must("an end").seconds, GO_ZERO);
    tokio::task::spawn_blocking(move || std::fs::write(go, "x\n")).await.must("a thread").must("release the task");
    plugin.wait(task.id()).await;
    let ended = plugin.inspect(task.id()).await.must("InspectTask").task.must("a task");
    assert_eq!((ended.state(), ended.result.must("a result").exit_code), (TaskState::Exited, 3));
    assert!((ended.completed_at.must("an end").seconds - now).abs() <= 10);
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

#[tokio::test]
async fn signals_reach_the_command() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let script = "trap 'echo got-hup' HUP; trap 'echo got-usr1' USR1; trap 'exit 42' USR2; echo ready; while :; do \
                  sleep 0.05; done";
    let task = node.task(&images.busybox()).sh(script).build(&mut plugin).await;
    plugin.started(&task).await;
    task.stdout().contains("ready", seconds(10)).await;
    plugin.signal(task.id(), "SIGHUP").await.must("SignalTask");
    task.stdout().contains("got-hup", seconds(5)).await;
    plugin.signal(task.id(), "sigusr1").await.must("SignalTask in lower case");
    task.stdout().contains("got-usr1", seconds(5)).await;
    let wrong = plugin.signal(task.id(), "SIGNONSENSE").await.err().must("a refusal");
    assert!(wrong.message().contains("SIGNONSENSE"), "{wrong}");
    plugin.signal(task.id(), "SIGUSR2").await.must("SignalTask");
    let exit = plugin.wait(task.id()).await;
    assert_eq!((exit.code, exit.signal), (42, 0));
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_killed_command_exits_with_128_and_the_signal() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh("sleep 1000").build(&mut plugin).await;
    plugin.started(&task).await;
    plugin.signal(task.id(), "SIGKILL").await.must("SignalTask");
    let exit = plugin.wait(task.id()).await;
    assert_eq!((exit.code, exit.oom), (137, false), "{exit:?}");
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_restart_uses_the_same_directories_cgroups_and_logs() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let mut task = node
        .task(&images.busybox())
        .sh("echo x >> /local/runs; touch /scratch; cat /local/runs")
        .build(&mut plugin)
        .await;
    for run in 1..=3 {
        plugin.started(&task).await;
        assert_eq!(plugin.wait(task.id()).await.code, 0);
        plugin.destroy(task.id(), true).await.must("DestroyTask");
        assert_eq!(task.stdout().all(seconds(5)).await, "x\n".repeat(run));
        task = task.restarted();
    }
    // The last restart was prepared, but it did not run.
    drop(task);
    node.finish(plugin).await;
}

/// Every start gets a new writable layer.
#[tokio::test]
async fn writes_to_the_root_are_gone_after_the_task() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node
        .task(&images.busybox())
        .sh("test ! -e /scratch || exit 9; echo data > /scratch; rm /etc/group; sync")
        .build(&mut plugin)
        .await;
    let again = task.restarted();
    for task in [&task, &again] {
        plugin.started(task).await;
        assert_eq!(plugin.wait(task.id()).await.code, 0);
        plugin.destroy(task.id(), true).await.must("DestroyTask");
    }
    node.finish(plugin).await;
}

/// tonic drops a handler when its client disconnects. A start that has begun must still reach a defined end.
#[tokio::test]
async fn a_start_whose_client_disconnects_is_completed() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let tasks = [
        node.task(&images.busybox()).sh("sleep 1000").build(&mut plugin).await,
        node.task(&images.busybox()).sh("sleep 1000").build(&mut plugin).await,
    ];
    for (task, patience) in tasks.iter().zip([2, 12]) {
        let request = StartTaskRequest { task: Some(task.config.clone()) };
        let mut driver = plugin.driver();
        let early = tokio::time::timeout(Duration::from_millis(patience), driver.start_task(request)).await;
        if early.is_ok() {
            continue;
        }
        // The start continues in the background. The id is known at its end.
        let deadline = Instant::now() + seconds(20);
        loop {
            match plugin.inspect(task.id()).await {
                Ok(answer) if answer.task.as_ref().is_some_and(|task| task.state() == TaskState::Running) => {
                    break;
                }
                other if Instant::now() > deadline => panic!("never running: {other:?}"),
                _ => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }
    for task in &tasks {
        plugin.end(task).await;
    }
    node.finish(plugin).await;
}

#[tokio::test]
async fn many_concurrent_tasks_leave_nothing_behind() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let warm = node.task(&images.busybox()).sh("exit 0").build(&mut plugin).await;
    plugin.started(&warm).await;
    plugin.wait(warm.id()).await;
    plugin.destroy(warm.id(), true).await.must("DestroyTask");
    let before = plugin.descriptors().len();
    let mut tasks = Vec::new();
    for number in 0..12 {
        tasks.push(node.task(&images.busybox()).sh(&format!("echo {number}; exit {number}")).build(&mut plugin).await);
    }
    let calls = &plugin;
    let runs = tasks.iter().enumerate().map(|(number, task)| async move {
        calls.started(task).await;
        let exit = calls.wait(task.id()).await;
        assert_eq!(usize::try_from(exit.code), Ok(number));
        calls.destroy(task.id(), true).await.must("DestroyTask");
        assert_eq!(task.stdout().all(seconds(5)).await, format!("{number}\n"));
    });
    all(runs).await;
    let steady = eventually(seconds(3), || plugin.descriptors().len() <= before + 2).await;
    assert!(steady, "{before} descriptors before, now {:#?}", plugin.descriptors());
    node.finish(plugin).await;
}

/// Nomad chooses the form of ids: with slashes, a bare UUID, or like a path.
#[tokio::test]
async fn task_ids_of_any_form_work() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let long = "x".repeat(300);
    for id in [
        "3f1c0b52-7e0d-4a53-9a0e-7a6d2f5c1b11",
        "../../escape",
        "a b\tc",
        "ünïcode/…",
        long.as_str(),
        "-rf",
        ".hidden",
        "a/b",
        "a_b",
    ] {
        let task = node.task(&images.busybox()).id(id).sh("echo ran").build(&mut plugin).await;
        plugin.started(&task).await;
        assert_eq!(plugin.wait(id).await.code, 0, "{id}");
        let inspected = plugin.inspect(id).await.must("InspectTask");
        assert_eq!(inspected.task.must("a task").id, id);
        plugin.destroy(id, true).await.must("DestroyTask");
    }
    assert!(!node.root().join("escape").exists() && !node.root().join("state/escape").exists());
    node.finish(plugin).await;
}
