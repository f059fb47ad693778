//! Much data through `nomad alloc exec`: every byte arrives, in order, and the plugin buffers only a small part.

use std::time::Duration;

use fixtures::{
    busybox::Images,
    must::Must,
    process,
    random::Random,
    wait::{eventually, patient, seconds},
};
use kit::{
    exec::{Requests, stdin},
    node::Node,
    plugin::Plugin,
};
use proto::driver::ExecTaskStreamingResponse;
use tonic::Streaming;

use crate::exec_streaming::sleeper;

/// The seed of the bytes that are sent.
const SEED: u64 = 1;
const MIB: usize = 1 << 20;
const MUCH: usize = 100 * MIB;
/// The limit of buffered data in the plugin and in the connection. It is smaller than `MUCH`.
const LITTLE: usize = 16 * MIB;

/// Nomad's command line sends chunks of 2 KiB.
async fn send_noise(requests: &Requests, total: usize) {
    let mut noise = Random::new(SEED);
    for _ in 0..total / 2048 {
        requests.send(stdin(&noise.bytes(2048), false)).await.must("a session that takes input");
    }
    requests.send(stdin(&[], true)).await.must("a session that takes input");
}

/// Reads the answers to the end. Returns the number of bytes of standard output, the position of the first wrong byte,
/// and the exit code.
async fn take_noise(answers: &mut Streaming<ExecTaskStreamingResponse>) -> (usize, Option<usize>, i32) {
    let (mut noise, mut pending) = (Random::new(SEED), Vec::new());
    let (mut count, mut wrong, mut code) = (0, None, -1);
    while let Some(message) = answers.message().await.must("the session") {
        let data = message.stdout.map(|stdout| stdout.data).unwrap_or_default();
        for byte in data {
            if pending.is_empty() {
                pending = noise.bytes(2048);
                pending.reverse();
            }
            if pending.pop() != Some(byte) && wrong.is_none() {
                wrong = Some(count);
            }
            count += 1;
        }
        code = message.result.map_or(code, |result| result.exit_code);
    }
    (count, wrong, code)
}

/// The plugin's memory before the transfer.
struct Memory {
    plugin: i32,
    before: u64,
}

impl Memory {
    fn of(plugin: &Plugin) -> Self {
        let plugin = plugin.process.pid();
        Self { plugin, before: process::anonymous_memory(plugin) }
    }

    fn assert_has_not_grown(&self) {
        let grown = process::anonymous_memory(self.plugin).saturating_sub(self.before) as usize;
        assert!(grown < LITTLE, "the plugin grew by {grown} bytes");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_mebibytes_pass_through_unchanged() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = sleeper(&node, &mut plugin, &images).await;
    plugin.sh(&task, "true").await;
    let memory = Memory::of(&plugin);
    let (requests, mut answers) = plugin.exec_raw(task.id(), &["cat"]).await;
    let (taken, ()) = tokio::join!(take_noise(&mut answers), send_noise(&requests, MUCH));
    assert_eq!(taken, (MUCH, None, 0), "bytes, the first wrong one, exit code");
    memory.assert_has_not_grown();
    plugin.end(&task).await;
    node.finish(plugin).await;
}

/// A command that does not read blocks its client, but no other call on the same connection. No data is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_does_not_read_blocks_the_client() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = sleeper(&node, &mut plugin, &images).await;
    plugin.sh(&task, "mkfifo /tmp/go 2>/dev/null || mknod /tmp/go p").await;
    let memory = Memory::of(&plugin);
    let (requests, mut answers) = plugin.exec_raw(task.id(), &["/bin/sh", "-c", "read x </tmp/go; exec cat"]).await;
    let mut noise = Random::new(SEED);
    let mut sent = 0;
    // Until no data moves any more.
    while sent < MUCH {
        let message = stdin(&noise.bytes(2048), false);
        match tokio::time::timeout(patient(Duration::from_millis(500)), requests.reserve()).await {
            Ok(permit) => permit.must("a session that takes input").send(message),
            Err(_) => break,
        }
        sent += 2048;
    }
    assert!(sent < LITTLE, "{sent} bytes were taken for a command that reads nothing");
    memory.assert_has_not_grown();
    // The last chunk above was not sent.
    let rest = async {
        plugin.sh(&task, "echo >/tmp/go").await;
        requests.send(stdin(&[], true)).await.must("a session that takes input");
    };
    let ((count, wrong, code), ()) = tokio::join!(take_noise(&mut answers), rest);
    assert_eq!((count, wrong, code), (sent, None, 0), "bytes, the first wrong one, exit code");
    plugin.end(&task).await;
    node.finish(plugin).await;
}

/// A client that does not read blocks its command. It gets all data later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_read_blocks_the_command() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = sleeper(&node, &mut plugin, &images).await;
    plugin.sh(&task, "true").await;
    let memory = Memory::of(&plugin);
    let size = MUCH.to_string();
    let (requests, mut answers) = plugin.exec_raw(task.id(), &["head", "-c", &size, "/dev/zero"]).await;
    let written = || {
        let head = task.groups.members().into_iter().find(|pid| process::command_line(*pid).starts_with("head"))?;
        let io = std::fs::read_to_string(format!("/proc/{head}/io")).ok()?;
        io.lines().find_map(|line| line.strip_prefix("wchar: ")?.parse::<usize>().ok())
    };
    let mut last = None;
    let mut still = 0;
    let stopped = eventually(seconds(20), || {
        let now = written();
        still = if now.is_some() && now == last { still + 1 } else { 0 };
        last = now;
        still > 40
    });
    assert!(stopped.await, "the command goes on writing: {last:?}");
    assert!(last.must("a count") < LITTLE, "{last:?} bytes were taken from the command");
    memory.assert_has_not_grown();
    let (mut count, mut code) = (0, -1);
    while let Some(message) = answers.message().await.must("the session") {
        count += message.stdout.map_or(0, |stdout| stdout.data.len());
        code = message.result.map_or(code, |result| result.exit_code);
    }
    assert_eq!((count, code), (MUCH, 0));
    drop(requests);
    plugin.end(&task).await;
    node.finish(plugin).await;
}

/// Input without a reader is not an error of the session.
#[tokio::test]
async fn a_command_that_closes_its_input_still_runs_to_its_end() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = sleeper(&node, &mut plugin, &images).await;
    let mut session = plugin
        .exec_streaming(task.id(), &["/bin/sh", "-c", "head -c 3; exec <&-; echo closed; read x; exit 6"], None)
        .await
        .must("a session");
    session.stdin(&vec![b'a'; 4 * MIB]);
    session.until("closed", seconds(10)).await;
    let outcome = session.finish(seconds(10)).await.must("a session");
    assert_eq!((outcome.stdout.as_str(), outcome.code), ("aaaclosed\n", 6));
    plugin.end(&task).await;
    node.finish(plugin).await;
}

/// A raw terminal passes every byte value unchanged.
#[tokio::test]
async fn a_raw_terminal_passes_all_byte_values() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = sleeper(&node, &mut plugin, &images).await;
    let all: Vec<u8> = (0..=u8::MAX).cycle().take(2048).collect();
    let script = "stty raw -echo; echo ready; head -c 2048 >/tmp/all; sed -n l /tmp/all | wc -c; cat /tmp/all \
                  >/tmp/copy; \
                  stty -raw; echo done";
    let mut session =
        plugin.exec_streaming(task.id(), &["/bin/sh", "-c", script], Some((24, 80))).await.must("a session");
    session.until("ready", seconds(5)).await;
    session.stdin(&all);
    session.until("done", seconds(10)).await;
    session.finish(seconds(5)).await.must("a session");
    // The data comes back through a pipe, byte by byte.
    let (_requests, mut answers) = plugin.exec_raw(task.id(), &["cat", "/tmp/all"]).await;
    let mut back = Vec::new();
    while let Some(message) = answers.message().await.must("the session") {
        back.extend(message.stdout.map(|stdout| stdout.data).unwrap_or_default());
    }
    assert!(back == all, "{} bytes came through", back.len());
    plugin.end(&task).await;
    node.finish(plugin).await;
}
