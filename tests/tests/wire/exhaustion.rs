//! What a task can use up on the node, and that the plugin serves the other tasks meanwhile.

use std::{fs, path::Path};

use fixtures::{busybox::Images, must::Must};
use kit::{node::Node, plugin::Plugin, task::Task};
use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};

const IDLE: &str = "while :; do sleep 1000; done";

/// Nests directories in the root of a running task.
fn nest(plugin: &Plugin, task: &Task, name: &str, depth: u32) {
    let open = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = format!("/proc/{}/root", plugin.init_pid(task));
    let mut current = openat(CWD, Path::new(&root), open, Mode::empty()).must("the task's root");
    for _ in 0..depth {
        mkdirat(&current, name, Mode::RWXU).must("a directory");
        current = openat(&current, name, open, Mode::empty()).must("opened");
    }
}

#[tokio::test]
async fn a_deep_tree_is_removed_and_ends_no_plugin() {
    let (node, images) = (Node::new(), Images::start().await);
    let mut plugin = node.launch().await;
    let task = node.task(&images.busybox()).sh(IDLE).build(&mut plugin).await;
    plugin.started(&task).await;
    nest(&plugin, &task, "d", 60_000);
    nest(&plugin, &task, &"long".repeat(63), 2_000);
    plugin.end(&task).await;
    let left = fs::read_dir(node.data_dir().join("containers")).must("the writable layers").count();
    assert_eq!(left, 0, "the writable layer is left");
    node.finish(plugin).await;
}
