//! The messages of `nomad alloc exec` in any order that a client may choose, to a running command.

use std::time::Duration;

use fixtures::{
    busybox::Images,
    must::Must,
    wait::{patient, seconds},
};
use kit::{
    exec::{size, stdin},
    node::Node,
};
use proto::driver::{ExecTaskStreamingRequest, exec_task_streaming_request::Setup};

use crate::exec_streaming::sleeper;

/// A random number generator. A failure prints its seed.
struct Rng(u64);

impl Rng {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Input, the end of input, heartbeats, sizes and late set-ups in random order, and the input that the command gets.
fn conversation(rng: &mut Rng) -> (Vec<ExecTaskStreamingRequest>, Vec<u8>) {
    let mut messages = Vec::new();
    let mut input = Vec::new();
    let mut closed = false;
    for _ in 0..rng.below(25) {
        messages.push(match rng.below(8) {
            0 => ExecTaskStreamingRequest::default(),
            1 => size(rng.below(70_000) as i32 - 2, rng.below(300) as i32),
            2 => {
                let setup = Setup { task_id: "another".to_owned(), command: vec!["false".to_owned()], tty: true };
                ExecTaskStreamingRequest { setup: Some(setup), ..Default::default() }
            }
            3 if rng.below(3) == 0 => {
                closed = true;
                stdin(&[], true)
            }
            _ => {
                let data: Vec<u8> = (0..rng.below(3000)).map(|_| rng.below(256) as u8).collect();
                let close = rng.below(12) == 0;
                if !closed {
                    input.extend(&data);
                }
                closed |= close;
                stdin(&data, close)
            }
        });
    }
    messages.push(stdin(&[], true));
    (messages, input)
}

#[tokio::test]
async fn messages_are_accepted_in_any_order() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = sleeper(&node, &mut plugin, &images).await;
    for seed in 1..=60 {
        let (messages, input) = conversation(&mut Rng(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed)));
        let (requests, mut answers) = plugin.exec_raw(task.id(), &["cat"]).await;
        let send = async {
            for message in messages {
                // The command ends at the end of its input. A later message comes too late, as it does in reality.
                drop(requests.send(message).await);
            }
        };
        let take = async {
            let (mut output, mut closes, mut result) = (Vec::new(), 0, None);
            while let Some(message) = answers.message().await.must("the session") {
                assert!(result.is_none(), "seed {seed}: a message after the result");
                closes += message.stdout.iter().chain(&message.stderr).filter(|part| part.close).count();
                output.extend(message.stdout.map(|stdout| stdout.data).unwrap_or_default());
                result = message.result.filter(|_| message.exited);
            }
            (output, closes, result.must("a result").exit_code)
        };
        let both = async { tokio::join!(take, send).0 };
        let (output, closes, code) =
            tokio::time::timeout(patient(seconds(10)), both).await.must("the end of the session");
        assert!(output == input, "seed {seed}: {} of {} bytes came back", output.len(), input.len());
        assert_eq!((closes, code), (2, 0), "seed {seed}");
    }
    plugin.end(&task).await;
    node.finish(plugin).await;
}

/// Before the set-up, there is no command for a size, input, the end of input or a heartbeat.
#[tokio::test]
async fn a_message_before_the_setup_is_refused() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = sleeper(&node, &mut plugin, &images).await;
    for first in [size(10, 10), stdin(b"x", false), stdin(&[], true), ExecTaskStreamingRequest::default()] {
        let setup = Setup { task_id: task.id().to_owned(), command: vec!["true".to_owned()], tty: false };
        let setup = ExecTaskStreamingRequest { setup: Some(setup), ..Default::default() };
        let refused = match plugin.driver().exec_task_streaming(tokio_stream::iter([first, setup])).await {
            Ok(stream) => stream.into_inner().message().await.err(),
            Err(status) => Some(status),
        };
        assert!(refused.must("a refusal").message().contains("no setup"));
    }
    plugin.end(&task).await;
    node.finish(plugin).await;
}

/// A terminal has its size when the command begins. A new size arrives although earlier input is not read yet, as long
/// as the connection can buffer that input.
#[tokio::test]
async fn terminal_sizes_are_applied_at_once() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = sleeper(&node, &mut plugin, &images).await;
    for _ in 0..10 {
        let outcome = plugin.exec_to_end(task.id(), &["stty", "size"], Some((40, 100)), seconds(10)).await;
        assert_eq!(outcome.must("a session").stdout, "40 100\r\n");
    }
    let script = "stty raw -echo; trap 'stty size; exit 4' WINCH; echo ready; while :; do sleep 0.05; done";
    let mut session =
        plugin.exec_streaming(task.id(), &["/bin/sh", "-c", script], Some((24, 80))).await.must("a session");
    session.until("ready", seconds(5)).await;
    session.stdin(&[b'x'; 40_000]);
    session.resize(50, 60);
    session.until("50 60", Duration::from_secs(10)).await;
    // The remaining input has no reader. It does not prevent the session's end.
    assert_eq!(session.finish(seconds(5)).await.must("a session").code, 4);
    plugin.end(&task).await;
    node.finish(plugin).await;
}
