//! ExecTask, which script checks and template scripts use.

use std::time::{Duration, Instant};

use fixtures::{
    busybox::Images,
    must::Must,
    wait::{patient, seconds},
};
use kit::{node::Node, plugin::Plugin, task::Task};
use tonic::Code;

async fn sleeper(node: &Node, plugin: &mut Plugin, images: &Images) -> Task {
    let task = node.task(&images.busybox()).sh("exec sleep 100000").env("FROM_JOB", "yes").build(plugin).await;
    plugin.started(&task).await;
    task
}

#[tokio::test]
async fn exec_returns_output_and_exit_code() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = sleeper(&node, &mut plugin, &images).await;
    for code in [0, 1, 2, 130] {
        let script = format!("echo out; echo err >&2; exit {code}");
        let answer = plugin.exec(task.id(), &["/bin/sh", "-c", &script], seconds(10)).await.must("ExecTask");
        assert_eq!(answer.result.must("a result").exit_code, code);
        // Both streams arrive as one, because a script check shows one output.
        let merged = String::from_utf8_lossy(&answer.stdout).into_owned();
        assert!(merged.contains("out\n") && merged.contains("err\n"), "{merged:?}");
    }
    plugin.end(&task).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn only_the_end_of_a_long_output_is_returned() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = sleeper(&node, &mut plugin, &images).await;
    let answer =
        plugin.exec(task.id(), &["/bin/sh", "-c", "seq 1 300000; printf end"], seconds(20)).await.must("ExecTask");
    assert_eq!(answer.result.must("a result").exit_code, 0);
    assert_eq!(answer.stdout.len(), 4096);
    assert!(answer.stdout.ends_with(b"299999\n300000\nend"), "the last bytes are kept");
    plugin.end(&task).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn stdout_and_stderr_are_merged_in_the_order_of_writes() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = sleeper(&node, &mut plugin, &images).await;
    let script = "for n in $(seq 1 200); do echo out $n; echo err $n >&2; done";
    let answer = plugin.exec(task.id(), &["/bin/sh", "-c", script], seconds(20)).await.must("ExecTask");
    let written: String = (1..=200).map(|n| format!("out {n}\nerr {n}\n")).collect();
    assert_eq!(String::from_utf8_lossy(&answer.stdout), written);
    plugin.end(&task).await;
    node.finish(plugin).await;
}

/// The agent sends a timeout but no deadline, so the driver enforces it. It kills the whole process tree, including
/// processes with their own session and orphans.
#[tokio::test]
async fn the_timeout_kills_the_whole_process_tree() {
    // This is long enough for the command to start all its processes on a busy machine.
    let limit = patient(seconds(3));
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = sleeper(&node, &mut plugin, &images).await;
    let before = task.groups.members().len();
    let script = "trap 'echo asked' TERM HUP INT; sleep 771 & setsid sleep 772 & (setsid sleep 773 &)
        (setsid sh -c 'sleep 774 & sleep 775' &); echo begun; while :; do sleep 776; done";
    let begun = Instant::now();
    let answer = plugin.exec(task.id(), &["/bin/sh", "-c", script], limit).await.must("ExecTask");
    assert!(begun.elapsed() >= limit, "no answer before the time is over");
    let result = answer.result.must("a result");
    assert_eq!((result.exit_code, result.signal), (137, 9));
    let output = String::from_utf8_lossy(&answer.stdout).into_owned();
    let told = format!("its timeout of {} s", limit.as_secs_f64());
    assert!(output.starts_with("begun\n") && output.contains(&told), "{output:?}");
    assert!(!output.contains("asked"), "it is killed at once: {output:?}");
    let left = node.traces().processes;
    assert!(!left.iter().any(|(_, line)| line.contains("sleep 77")), "left of the command: {left:?}");
    assert!(task.groups.members().len() <= before, "{:?}", task.groups.members());
    assert_eq!(plugin.sh(&task, "echo alive").await, "alive");
    plugin.end(&task).await;
    node.finish(plugin).await;
}

/// A background process of a check may write forever.
#[tokio::test]
async fn a_background_process_does_not_delay_the_answer() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = sleeper(&node, &mut plugin, &images).await;
    let answer = plugin.exec(task.id(), &["/bin/sh", "-c", "yes & sleep 0.1; exit 3"], seconds(10)).await;
    assert_eq!(answer.must("ExecTask").result.must("a result").exit_code, 3);
    plugin.end(&task).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn exec_works_in_a_task_without_a_shell() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.without_shell()).build(&mut plugin).await;
    plugin.started(&task).await;
    let answer = plugin.exec(task.id(), &["/bin/sh", "-c", "true"], seconds(10)).await.must("ExecTask");
    assert_eq!(answer.result.must("a result").exit_code, 127);
    let output = String::from_utf8_lossy(&answer.stdout).into_owned();
    assert!(output.contains("\"/bin/sh\" not found in the image"), "{output:?}");
    let answer = plugin.exec(task.id(), &["/sleep", "0"], seconds(10)).await.must("ExecTask");
    assert_eq!(answer.result.must("a result").exit_code, 0, "an existing command runs");
    plugin.end(&task).await;
    node.finish(plugin).await;
}

/// At any moment, the answer is a result or the error that the task does not run.
#[tokio::test]
async fn exec_in_an_ending_task_succeeds_or_fails_cleanly() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    for round in 0..8 {
        let task = sleeper(&node, &mut plugin, &images).await;
        let commands = async {
            for _ in 0..40 {
                match plugin.exec(task.id(), &["true"], seconds(10)).await {
                    Ok(answer) => {
                        let code = answer.result.must("a result").exit_code;
                        assert!([0, 137].contains(&code), "round {round}: exit code {code}");
                    }
                    Err(status) => {
                        let clear = status.message().contains("not running") || status.message().contains("ended");
                        assert!(clear && status.code() == Code::FailedPrecondition, "round {round}: {status}");
                        return;
                    }
                }
            }
        };
        let stop = async {
            tokio::time::sleep(Duration::from_millis(3 * round)).await;
            plugin.stop(task.id(), Duration::ZERO, "").await.must("StopTask");
        };
        tokio::join!(commands, stop);
        plugin.destroy(task.id(), true).await.must("DestroyTask");
    }
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_missing_or_unusable_command_is_an_error_message() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = sleeper(&node, &mut plugin, &images).await;
    for (command, code) in [("no-such-command", 127), ("/no/such/path", 127), ("/etc/passwd", 126), ("/etc", 126)] {
        match plugin.exec(task.id(), &[command], seconds(10)).await {
            Ok(answer) => assert_eq!(answer.result.must("a result").exit_code, code, "{command}"),
            Err(status) => panic!("{command}: {status}"),
        }
    }
    plugin.exec(task.id(), &[], seconds(10)).await.err().must("an empty command");
    plugin.end(&task).await;
    plugin.exec(task.id(), &["true"], seconds(10)).await.err().must("no task any more");
    node.finish(plugin).await;
}

#[tokio::test]
async fn exec_in_an_ended_task_fails() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh("exit 0").build(&mut plugin).await;
    plugin.started(&task).await;
    plugin.wait(task.id()).await;
    plugin.exec(task.id(), &["true"], seconds(10)).await.err().must("the task has ended");
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

#[tokio::test]
async fn an_exec_process_has_the_containers_namespaces_and_cgroups() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node
        .task(&images.busybox())
        .sh("cd /; while :; do sleep 1000; done")
        .option("work_dir", serde_json::json!("/home/user"))
        .env("FROM_JOB", "yes")
        .user("user")
        .build(&mut plugin)
        .await;
    plugin.started(&task).await;
    assert_eq!(
        plugin.sh(&task, "echo $FROM_JOB $IMAGE_ENV; pwd; id -u; id -g").await,
        "yes from-image\n/home/user\n1000\n1000"
    );
    // The command has the same namespaces, cgroup and restrictions as the task's own command.
    let init = plugin.init_pid(&task);
    for namespace in ["mnt", "pid", "ipc", "uts", "net", "cgroup"] {
        let own = std::fs::read_link(format!("/proc/{init}/ns/{namespace}")).must("a namespace");
        let seen = plugin.sh(&task, &format!("readlink /proc/self/ns/{namespace}")).await;
        assert_eq!(seen, own.to_string_lossy(), "{namespace}");
    }
    for field in
        ["CapBnd", "CapEff", "CapPrm", "CapInh", "CapAmb", "NoNewPrivs", "Seccomp", "Groups", "SigIgn", "SigBlk"]
    {
        // This runs without a shell, because a shell changes the ignored signals.
        let program = format!("s/^{field}:[[:space:]]*//p");
        let answer = plugin.exec(task.id(), &["sed", "-n", &program, "/proc/self/status"], seconds(10)).await;
        let seen = String::from_utf8_lossy(&answer.must("ExecTask").stdout).trim().to_owned();
        if field.starts_with("Sig") {
            assert_eq!(seen, "0000000000000000", "{field}");
        } else {
            assert_eq!(seen, fixtures::process::status_field(init, field).must(field), "{field}");
        }
    }
    plugin.end(&task).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn many_concurrent_execs_succeed() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = sleeper(&node, &mut plugin, &images).await;
    plugin.sh(&task, "true").await;
    // The descriptors of the task itself are of other kinds. Some of them appear a moment after its start.
    let held = |plugin: &Plugin| plugin.descriptors().iter().filter(|kind| kind.starts_with("pipe:")).count();
    let before = held(&plugin);
    let plugin = std::sync::Arc::new(plugin);
    let id = task.id().to_owned();
    let mut runs = Vec::new();
    for number in 0..16 {
        let (plugin, id) = (std::sync::Arc::clone(&plugin), id.clone());
        runs.push(tokio::spawn(async move {
            let answer =
                plugin.exec(&id, &["/bin/sh", "-c", &format!("echo {number}")], seconds(20)).await.must("ExecTask");
            assert_eq!(String::from_utf8_lossy(&answer.stdout), format!("{number}\n"));
        }));
    }
    for run in runs {
        run.await.must("an exec");
    }
    let plugin = std::sync::Arc::into_inner(plugin).must("the plugin");
    let steady = fixtures::wait::eventually(seconds(10), || held(&plugin) <= before).await;
    assert!(steady, "{before} descriptors before, now {:#?}", plugin.descriptors());
    plugin.end(&task).await;
    node.finish(plugin).await;
}
