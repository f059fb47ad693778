//! The log FIFOs: a task's output arrives complete and in separate streams, and ends with the task.

use std::{fs, os::unix::fs::symlink};

use fixtures::{busybox::Images, must::Must, wait::seconds};
use kit::node::Node;
use serde_json::json;

#[tokio::test]
async fn stdout_and_stderr_arrive_separate_and_complete() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let script = "seq 1 200000; echo problem >&2; printf 'no newline'";
    let task = node.task(&images.busybox()).sh(script).build(&mut plugin).await;
    plugin.started(&task).await;
    assert_eq!(plugin.wait(task.id()).await.code, 0);
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    let expected: String = (1..=200_000).map(|n| format!("{n}\n")).collect::<String>() + "no newline";
    assert!(task.stdout().all(seconds(10)).await == expected, "standard output is complete");
    assert_eq!(task.stderr().all(seconds(10)).await, "problem\n");
    node.finish(plugin).await;
}

/// Also by a process that opens its output again.
#[tokio::test]
async fn output_without_a_log_is_discarded() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    for user in ["root", "1000"] {
        let script = "echo lost && echo lost >&2 && echo lost >/dev/stdout && test -c /dev/stderr";
        let task = node.task(&images.busybox()).sh(script).user(user);
        let task = task.option("logging", json!({ "type": "none" })).build(&mut plugin).await;
        plugin.started(&task).await;
        assert_eq!(plugin.wait(task.id()).await.code, 0, "{user}");
        plugin.destroy(task.id(), true).await.must("DestroyTask");
    }
    node.finish(plugin).await;
}

/// logmon reads until the last writer closes the FIFO. Neither the driver nor another child may keep it open.
#[tokio::test]
async fn the_log_ends_soon_after_the_task() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh("echo done; sleep 1000 & exit 0").build(&mut plugin).await;
    plugin.started(&task).await;
    plugin.wait(task.id()).await;
    assert_eq!(task.stdout().all(seconds(5)).await, "done\n");
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_terminal_merges_the_streams() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let script = "tty_test() { test -t 0 && test -t 1 && test -t 2; }; tty_test && echo terminal; echo also >&2";
    let task = node.task(&images.busybox()).sh(script).option("tty", json!(true)).build(&mut plugin).await;
    plugin.started(&task).await;
    assert_eq!(plugin.wait(task.id()).await.code, 0);
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    assert_eq!(task.stdout().all(seconds(5)).await.replace('\r', ""), "terminal\nalso\n");
    node.finish(plugin).await;
}

/// As with docker's `OpenStdin`: a program that ends with its input goes on.
#[tokio::test]
async fn an_interactive_task_never_sees_the_end_of_its_input() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let closed = node.task(&images.busybox()).command("/bin/cat", &[]).build(&mut plugin).await;
    plugin.started(&closed).await;
    assert_eq!(plugin.wait(closed.id()).await.code, 0, "without the option the input is empty");
    plugin.destroy(closed.id(), true).await.must("DestroyTask");
    for (user, path) in [("root", "-"), ("1000:1000", "/dev/stdin")] {
        let task = node.task(&images.busybox()).command("/bin/cat", &[path]).user(user);
        let task = task.option("interactive", json!(true)).build(&mut plugin).await;
        plugin.started(&task).await;
        assert!(plugin.sh(&task, "readlink /proc/1/fd/0").await.starts_with("pipe:["));
        // Data that the task gets by other means arrives, and the input does not end after it.
        for word in ["one", "two"] {
            plugin.sh(&task, &format!("echo {word} >/proc/1/fd/0")).await;
            task.stdout().contains(word, seconds(10)).await;
        }
        plugin.end(&task).await;
    }
    node.finish(plugin).await;
}

#[tokio::test]
async fn output_with_disabled_logs_is_dropped() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task =
        node.task(&images.busybox()).sh("echo lost; echo lost >&2; exit 2").without_logs().build(&mut plugin).await;
    plugin.started(&task).await;
    assert_eq!(plugin.wait(task.id()).await.code, 2);
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

/// On agents that do not protect the logs directory, a task can write to it. A symbolic link in place of the FIFO must
/// not lead the driver to a file of the host.
#[tokio::test]
async fn a_symbolic_link_instead_of_a_log_fifo_is_refused() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let victim = node.root().join("victim");
    fs::write(&victim, "precious").must("a file of the host");
    let mut link = node.task(&images.busybox()).sh("echo overwritten").without_logs().build(&mut plugin).await;
    let path = link.alloc.dir.join("alloc/logs/.main.stdout.fifo");
    symlink(&victim, &path).must("a link");
    link.config.stdout_path = path.to_string_lossy().into_owned();
    let mut file = node.task(&images.busybox()).sh("echo overwritten").without_logs().build(&mut plugin).await;
    file.config.stderr_path = victim.to_string_lossy().into_owned();
    for task in [&link, &file] {
        let status = plugin.start(task).await.err().must("a refusal");
        assert!(!kit::calls::recoverable(&status) || status.message().contains("FIFO"), "{status}");
    }
    assert_eq!(fs::read_to_string(&victim).must("the file"), "precious");
    node.finish(plugin).await;
}

/// Binary output at full speed, up to the last byte before the exit.
#[tokio::test]
async fn sixty_four_mebibytes_arrive_byte_for_byte() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).command("/bin/cat", &["/local/big"]).build(&mut plugin).await;
    // All byte values, with a period that is no multiple of a page.
    let mut state = 1u32;
    let big: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()
    })
    .take(16 << 20)
    .flatten()
    .collect();
    fs::write(task.dir().join("local/big"), &big).must("the task's input");
    plugin.started(&task).await;
    assert_eq!(plugin.wait(task.id()).await.code, 0);
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    let arrived = task.stdout().all_bytes(seconds(30)).await;
    assert_eq!(arrived.len(), big.len());
    assert!(arrived == big, "every byte in its place");
    node.finish(plugin).await;
}

#[tokio::test]
async fn tasks_can_close_reopen_and_share_their_streams() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    for (script, code, expected) in [
        ("echo first; exec >&-; sleep 0.1; exit 3", 3, "first\n"),
        ("echo a; echo b > /dev/stdout; echo c >> /proc/self/fd/1", 0, "a\nb\nc\n"),
        ("for i in 1 2 3; do (sleep 0.1; echo x) & done; wait", 0, "x\nx\nx\n"),
        ("(exec 2>&-; sleep 0.2; echo late) & wait; printf end", 0, "late\nend"),
    ] {
        let task = node.task(&images.busybox()).sh(script).build(&mut plugin).await;
        plugin.started(&task).await;
        assert_eq!(plugin.wait(task.id()).await.code, code, "{script}");
        plugin.destroy(task.id(), true).await.must("DestroyTask");
        assert_eq!(task.stdout().all(seconds(5)).await, expected, "{script}");
    }
    node.finish(plugin).await;
}
