//! ExecTaskStreaming, the call of `nomad alloc exec`, with and without a terminal.

use std::time::{Duration, Instant};

use fixtures::{
    busybox::Images,
    must::Must,
    wait::{eventually, patient, seconds},
};
use kit::{node::Node, plugin::Plugin, task::Task};
use proto::driver::ExecTaskStreamingRequest;

/// A running task for the commands.
pub async fn sleeper(node: &Node, plugin: &mut Plugin, images: &Images) -> Task {
    let task = node.task(&images.busybox()).sh("while :; do sleep 1000; done").build(plugin).await;
    plugin.started(&task).await;
    task
}

#[tokio::test]
async fn streams_exit_code_and_order_are_correct() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = sleeper(&node, &mut plugin, &images).await;
    let command = ["/bin/sh", "-c", "echo out; echo err >&2; exit 5"];
    let outcome = plugin.exec_to_end(task.id(), &command, None, seconds(10)).await.must("a session");
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str(), outcome.code), ("out\n", "err\n", 5));
    let quiet = plugin.exec_to_end(task.id(), &["true"], None, seconds(10)).await.must("a session");
    assert_eq!((quiet.stdout.as_str(), quiet.code), ("", 0));
    plugin.end(&task).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn input_and_its_end_reach_the_command() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = sleeper(&node, &mut plugin, &images).await;
    let mut session = plugin.exec_streaming(task.id(), &["cat"], None).await.must("a session");
    session.stdin(b"hello\n");
    session.until("hello\n", seconds(5)).await;
    session.heartbeat();
    let large: String = (0..20_000).map(|n| format!("{n}\n")).collect();
    session.stdin(large.as_bytes());
    session.close_stdin();
    let outcome = session.finish(seconds(20)).await.must("a session");
    assert!(outcome.stdout == format!("hello\n{large}"), "{} of {} bytes", outcome.stdout.len(), large.len() + 6);
    assert_eq!(outcome.code, 0);
    plugin.end(&task).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn output_arrives_while_the_command_runs() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = sleeper(&node, &mut plugin, &images).await;
    let mut session = plugin
        .exec_streaming(task.id(), &["/bin/sh", "-c", "echo first; read line; echo second $line"], None)
        .await
        .must("a session");
    session.until("first\n", seconds(5)).await;
    session.stdin(b"go\n");
    let outcome = session.finish(seconds(5)).await.must("a session");
    assert_eq!(outcome.stdout, "first\nsecond go\n");
    plugin.end(&task).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn large_output_is_complete() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = sleeper(&node, &mut plugin, &images).await;
    for tty in [None, Some((24, 80))] {
        let outcome = plugin.exec_to_end(task.id(), &["seq", "1", "200000"], tty, seconds(30)).await.must("a session");
        let expected: String = (1..=200_000).map(|n| format!("{n}\n")).collect();
        assert!(outcome.stdout.replace('\r', "") == expected, "tty {tty:?}: {} bytes", outcome.stdout.len());
    }
    plugin.end(&task).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_terminal_has_its_size() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = sleeper(&node, &mut plugin, &images).await;
    let script = "test -t 0 && test -t 1 && test -t 2 && echo is-terminal; read a; stty size; until [ \"$(stty \
                  size)\" = '40 50' ]; do sleep 0.05; done; stty size; exit 3";
    let mut session =
        plugin.exec_streaming(task.id(), &["/bin/sh", "-c", script], Some((100, 120))).await.must("a session");
    session.until("is-terminal", seconds(5)).await;
    session.stdin(b"\n");
    session.until("100 120", seconds(5)).await;
    session.resize(40, 50);
    session.until("40 50", seconds(5)).await;
    let outcome = session.finish(seconds(5)).await.must("a session");
    assert_eq!((outcome.code, outcome.stderr.as_str()), (3, ""), "a terminal has one stream");
    plugin.end(&task).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_terminal_controls_its_command() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = sleeper(&node, &mut plugin, &images).await;
    let script = "trap 'echo interrupted; exit 9' INT; echo ready; while :; do sleep 0.05; done";
    let mut session =
        plugin.exec_streaming(task.id(), &["/bin/sh", "-c", script], Some((24, 80))).await.must("a session");
    session.until("ready", seconds(5)).await;
    // Ctrl-C.
    session.stdin(b"\x03");
    let outcome = session.finish(seconds(5)).await.must("a session");
    assert_eq!(outcome.code, 9, "{outcome:?}");
    plugin.end(&task).await;
    node.finish(plugin).await;
}

/// The session ends with its command, not with the background processes of the command.
#[tokio::test]
async fn background_children_do_not_keep_the_session_open() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = sleeper(&node, &mut plugin, &images).await;
    for tty in [None, Some((24, 80))] {
        let begun = Instant::now();
        let command = ["/bin/sh", "-c", "(sleep 300; echo late) & echo from the shell"];
        let outcome = plugin.exec_to_end(task.id(), &command, tty, seconds(10)).await.must("a session");
        assert_eq!(outcome.stdout.trim_end(), "from the shell");
        assert!(begun.elapsed() < patient(seconds(60)), "{:?}", begun.elapsed());
    }
    plugin.end(&task).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_disconnect_ends_the_command() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = sleeper(&node, &mut plugin, &images).await;
    // The descriptors of the task itself are of other kinds. Some of them appear a moment after its start.
    let held = || plugin.descriptors().iter().filter(|kind| kind.starts_with("pipe:") || kind.contains("pts")).count();
    let before = held();
    for tty in [None, Some((24, 80))] {
        let script = "trap '' HUP TERM INT; echo ready; while :; do sleep 771; done";
        let mut session = plugin.exec_streaming(task.id(), &["/bin/sh", "-c", script], tty).await.must("a session");
        session.until("ready", seconds(5)).await;
        drop(session);
        let gone =
            eventually(seconds(15), || !node.traces().processes.iter().any(|(_, line)| line.contains("sleep 771")))
                .await;
        assert!(gone, "tty {tty:?}:\n{}", node.traces());
    }
    let steady = eventually(seconds(3), || held() == before).await;
    assert!(steady, "{before} descriptors before, now {:#?}", plugin.descriptors());
    plugin.end(&task).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_missing_setup_or_an_unusable_command_is_an_error() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = sleeper(&node, &mut plugin, &images).await;
    // The first message is not a setup.
    let requests = tokio_stream::iter([ExecTaskStreamingRequest::default()]);
    let refused = match plugin.driver().exec_task_streaming(requests).await {
        Ok(stream) => stream.into_inner().message().await.err(),
        Err(status) => Some(status),
    };
    refused.must("a refusal");
    for tty in [None, Some((24, 80))] {
        let outcome = plugin.exec_to_end(task.id(), &[], tty, seconds(5)).await.must("an answer in words");
        assert!(outcome.code == 125 && (outcome.stdout + &outcome.stderr).contains("the command is empty"));
    }
    for (command, code) in [("no-such-command", 127), ("/etc/passwd", 126)] {
        for tty in [None, Some((24, 80))] {
            let outcome = plugin.exec_to_end(task.id(), &[command], tty, seconds(5)).await.must("an answer in words");
            assert_eq!(outcome.code, code, "{outcome:?}");
            let words = outcome.stdout + &outcome.stderr;
            assert!(words.contains(command), "{words:?}");
        }
    }
    plugin.end(&task).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn an_open_session_does_not_prevent_the_tasks_end() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = sleeper(&node, &mut plugin, &images).await;
    let mut session = plugin
        .exec_streaming(task.id(), &["/bin/sh", "-c", "echo ready; exec sleep 1000"], None)
        .await
        .must("a session");
    session.until("ready", seconds(5)).await;
    plugin.stop(task.id(), Duration::ZERO, "").await.must("StopTask");
    assert_eq!(plugin.wait(task.id()).await.code, 137);
    let outcome = session.finish(seconds(5)).await.must("the session's end");
    assert_eq!(outcome.code, 137, "{outcome:?}");
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_stalled_reader_does_not_block_other_sessions() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = sleeper(&node, &mut plugin, &images).await;
    // These answers are not read. The command fills every buffer on the way and blocks.
    let stalled = plugin.exec_streaming(task.id(), &["yes"], None).await.must("a session");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(plugin.sh(&task, "echo fine").await, "fine");
    drop(stalled);
    let gone = eventually(seconds(15), || !node.traces().processes.iter().any(|(_, line)| line.trim() == "yes")).await;
    assert!(gone, "{}", node.traces());
    plugin.end(&task).await;
    node.finish(plugin).await;
}
