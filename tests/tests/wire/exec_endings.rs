//! The end of `nomad alloc exec`: by its command, its client, its task, or its plugin.

use std::time::Duration;

use fixtures::{
    busybox::Images,
    must::Must,
    process,
    wait::{all, eventually, seconds},
};
use kit::{node::Node, plugin::Plugin, task::Task};

use crate::exec_streaming::sleeper;

fn runs(node: &Node, part: &str) -> bool {
    node.traces().processes.iter().any(|(_, line)| line.contains(part))
}

#[tokio::test]
async fn exit_codes_and_signals_are_reported() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = sleeper(&node, &mut plugin, &images).await;
    for (script, code, signal) in [
        ("exit 0", 0, 0),
        ("exit 255", 255, 0),
        ("kill -TERM $$", 143, 15),
        ("kill -KILL $$", 137, 9),
        ("kill -SEGV $$", 139, 11),
    ] {
        for tty in [None, Some((24, 80))] {
            let command = ["/bin/sh", "-c", script];
            let outcome = plugin.exec_to_end(task.id(), &command, tty, seconds(10)).await.must("a session");
            assert_eq!((outcome.code, outcome.signal), (code, signal), "{script} with terminal {tty:?}");
        }
    }
    plugin.end(&task).await;
    node.finish(plugin).await;
}

/// The last output of a command arrives, even of a very short one. The kernel forwards a terminal's output in the
/// background.
#[tokio::test]
async fn the_last_output_is_never_cut_off() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = sleeper(&node, &mut plugin, &images).await;
    let words: String = (1..=700).map(|n| format!("{n}\n")).collect();
    for round in 0..40 {
        let tty = (round % 2 == 0).then_some((24, 80));
        let outcome = plugin.exec_to_end(task.id(), &["seq", "1", "700"], tty, seconds(10)).await.must("a session");
        assert!(outcome.stdout.replace('\r', "") == words, "round {round}: {} bytes", outcome.stdout.len());
    }
    plugin.end(&task).await;
    node.finish(plugin).await;
}

/// The task stops each process that enters it, mostly before the command begins. The timeout ends such a command, and
/// so does a client that goes away.
#[tokio::test]
async fn a_command_that_the_task_stops_before_it_begins_is_ended() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let pids: String = (2..60).map(|pid| format!(" {pid}")).collect();
    let script = format!("echo up; exec 2>/dev/null; while :; do kill -STOP{pids}; done");
    let task = node.task(&images.busybox()).sh(&script).build(&mut plugin).await;
    plugin.started(&task).await;
    task.stdout().contains("up", seconds(10)).await;
    let checks = (0..8).map(|_| async {
        let answer = plugin.exec(task.id(), &["/bin/true"], seconds(1)).await.must("ExecTask");
        let code = answer.result.must("a result").exit_code;
        assert!([0, 137].contains(&code), "exit code {code}");
    });
    all(checks).await;
    let session = plugin.exec_streaming(task.id(), &["/bin/true"], None).await.must("a session");
    drop(session);
    // Only the monitor is left.
    let children = || process::children(plugin.process.pid());
    assert!(eventually(seconds(10), || children().len() == 1).await, "{:?}", children());
    plugin.end(&task).await;
    node.finish(plugin).await;
}

/// The session ends with its command, even if a background process of the command writes forever.
#[tokio::test]
async fn a_background_writer_does_not_keep_the_session_open() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = sleeper(&node, &mut plugin, &images).await;
    // On a terminal, the end of the command sends SIGHUP to its session. A process that ignores SIGHUP keeps running.
    for (tty, script) in [(None, "yes & sleep 0.1; exit 3"), (Some((24, 80)), "trap '' HUP; yes & sleep 0.1; exit 3")] {
        let command = ["/bin/sh", "-c", script];
        let outcome = plugin.exec_to_end(task.id(), &command, tty, seconds(20)).await.must("a session");
        assert_eq!(outcome.code, 3);
    }
    plugin.end(&task).await;
    node.finish(plugin).await;
}

/// Starts two commands and disconnects: one handles SIGHUP, one ignores it. Returns the output that they write after
/// the disconnect.
async fn hang_up(node: &Node, plugin: &Plugin, task: &Task, tty: Option<(i32, i32)>, number: u32) -> String {
    let (polite, stubborn) = (format!("/tmp/polite-{tty:?}-{number}"), format!("/tmp/stubborn-{tty:?}-{number}"));
    let scripts = [
        format!("trap 'echo bye >\"{polite}\"; exit' HUP; echo ready; while :; do sleep 0.05; done"),
        format!("trap 'echo no >\"{stubborn}\"' HUP; echo ready; while :; do sleep 0.05 || sleep 0.06; done"),
    ];
    let mut sessions = Vec::new();
    for script in &scripts {
        let mut session = plugin.exec_streaming(task.id(), &["/bin/sh", "-c", script], tty).await.must("a session");
        session.until("ready", seconds(5)).await;
        sessions.push(session);
    }
    drop(sessions);
    let gone = eventually(seconds(10), || !runs(node, "echo ready")).await;
    assert!(gone, "terminal {tty:?}:\n{}", node.traces());
    plugin.sh(task, &format!("cat \"{polite}\" \"{stubborn}\" 2>/dev/null; true")).await
}

/// A disconnect of the client acts like a closed terminal: SIGHUP, and then SIGKILL for processes that ignore it.
#[tokio::test]
async fn a_disconnect_sends_sighup_and_then_sigkill() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = sleeper(&node, &mut plugin, &images).await;
    for tty in [None, Some((24, 80))] {
        let mut taken = String::new();
        // The grace period is half a second, which is short on a busy machine. One of five commands must use it
        // undisturbed.
        for number in 1..=5 {
            taken = hang_up(&node, &plugin, &task, tty, number).await;
            if taken == "bye\nno" {
                break;
            }
        }
        assert_eq!(taken, "bye\nno", "terminal {tty:?}");
    }
    plugin.end(&task).await;
    node.finish(plugin).await;
}

/// A command ends when no process can end it any more. The task is not affected.
#[tokio::test]
async fn a_plugin_kill_ends_its_exec_commands() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh("while :; do sleep 1000; done").build(&mut plugin).await;
    let handle = plugin.started(&task).await;
    let mut sessions = Vec::new();
    for tty in [None, Some((24, 80))] {
        let script = "trap '' HUP; echo ready; while :; do sleep 0.1 || sleep 0.2; done";
        let mut session = plugin.exec_streaming(task.id(), &["/bin/sh", "-c", script], tty).await.must("a session");
        session.until("ready", seconds(5)).await;
        sessions.push(session);
    }
    plugin.process.kill().await;
    let gone = eventually(seconds(10), || !runs(&node, "echo ready") && !runs(&node, "oci-rs exec")).await;
    assert!(gone, "{}", node.traces());
    assert!(runs(&node, "sleep 1000"), "the task goes on");
    drop(sessions);
    let plugin = node.launch().await;
    plugin.recover(&handle).await.must("RecoverTask");
    plugin.end(&task).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn stopping_a_task_ends_its_exec_sessions() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = sleeper(&node, &mut plugin, &images).await;
    let mut sessions = Vec::new();
    for tty in [None, Some((24, 80))] {
        let script = "trap '' HUP TERM; echo ready; while :; do sleep 0.1; done";
        let mut session = plugin.exec_streaming(task.id(), &["/bin/sh", "-c", script], tty).await.must("a session");
        session.until("ready", seconds(5)).await;
        sessions.push(session);
    }
    plugin.stop(task.id(), Duration::ZERO, "").await.must("StopTask");
    for session in sessions {
        let outcome = session.finish(seconds(5)).await.must("the session's end");
        assert_eq!((outcome.code, outcome.signal), (137, 9), "{outcome:?}");
    }
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}
