//! StopTask: the signal, the timeout, the kill.

use std::time::{Duration, Instant};

use fixtures::{
    busybox::Images,
    must::Must,
    wait::{patient, seconds},
};
use kit::node::Node;

#[tokio::test]
async fn the_default_stop_signal_is_sigterm() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let script = "trap 'echo bye; exit 4' TERM; echo ready; while :; do sleep 0.05; done";
    let task = node.task(&images.busybox()).sh(script).build(&mut plugin).await;
    plugin.started(&task).await;
    task.stdout().contains("ready", seconds(10)).await;
    let begun = Instant::now();
    plugin.stop(task.id(), seconds(120), "").await.must("StopTask");
    assert!(begun.elapsed() < patient(seconds(60)), "returns when the task has ended: {:?}", begun.elapsed());
    assert_eq!(plugin.wait(task.id()).await.code, 4);
    assert_eq!(task.stdout().all(seconds(5)).await, "ready\nbye\n");
    // A stop of an ended task succeeds: an agent would repeat a failed stop for minutes.
    plugin.stop(task.id(), seconds(5), "").await.must("StopTask of an ended task");
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_task_that_ignores_the_signal_is_killed_after_the_timeout() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let script = "trap '' TERM; echo ready; while :; do sleep 0.05; done";
    let task = node.task(&images.busybox()).sh(script).build(&mut plugin).await;
    plugin.started(&task).await;
    task.stdout().contains("ready", seconds(10)).await;
    let begun = Instant::now();
    plugin.stop(task.id(), Duration::from_millis(700), "").await.must("StopTask");
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(650) && took < patient(seconds(20)), "{took:?}");
    assert_eq!(plugin.wait(task.id()).await.code, 137);
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_zero_timeout_kills_at_once() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh("trap '' TERM; echo ready; sleep 1000").build(&mut plugin).await;
    plugin.started(&task).await;
    task.stdout().contains("ready", seconds(10)).await;
    let begun = Instant::now();
    plugin.stop(task.id(), Duration::ZERO, "").await.must("StopTask");
    // This is shorter than any default timeout.
    assert!(begun.elapsed() < patient(Duration::from_millis(4500)), "{:?}", begun.elapsed());
    assert_eq!(plugin.wait(task.id()).await.code, 137);
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

#[tokio::test]
async fn the_jobs_stop_signal_is_used_and_an_invalid_one_refused() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let script =
        "trap 'echo term; exit 1' TERM; trap 'echo quit; exit 6' QUIT; echo ready; while :; do sleep 0.05; done";
    let task = node.task(&images.busybox()).sh(script).build(&mut plugin).await;
    plugin.started(&task).await;
    task.stdout().contains("ready", seconds(10)).await;
    let wrong = plugin.stop(task.id(), seconds(1), "SIGNONSENSE").await.err().must("a refusal");
    assert!(wrong.message().contains("SIGNONSENSE"), "{wrong}");
    plugin.stop(task.id(), seconds(20), "SIGQUIT").await.must("StopTask");
    assert_eq!(plugin.wait(task.id()).await.code, 6);
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

#[tokio::test]
async fn the_images_stop_signal_is_used() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let script =
        "trap 'echo term; exit 1' TERM; trap 'echo usr1; exit 8' USR1; echo ready; while :; do sleep 0.05; done";
    let task = node.task(&images.with_stop_signal("SIGUSR1")).sh(script).build(&mut plugin).await;
    plugin.started(&task).await;
    task.stdout().contains("ready", seconds(10)).await;
    plugin.stop(task.id(), seconds(20), "").await.must("StopTask");
    assert_eq!(plugin.wait(task.id()).await.code, 8);
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_stop_ends_all_processes_of_the_task() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    // Children with their own sessions ignore all signals that can be ignored, while the first process ends.
    let script = "for i in 1 2 3; do (trap '' TERM HUP INT; setsid sleep 1000 </dev/null >/dev/null 2>&1) & done; \
                  sleep 0.2; exit 0";
    let task = node.task(&images.busybox()).sh(script).build(&mut plugin).await;
    plugin.started(&task).await;
    assert_eq!(plugin.wait(task.id()).await.code, 0);
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    let left = task.groups.members();
    assert!(left.is_empty(), "{left:?}");
    node.finish(plugin).await;
}

#[tokio::test]
async fn concurrent_stops_succeed() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh("trap '' TERM; sleep 1000").build(&mut plugin).await;
    plugin.started(&task).await;
    let patience = Duration::from_millis(300);
    let (first, second) = tokio::join!(plugin.stop(task.id(), patience, ""), plugin.stop(task.id(), patience, ""));
    first.must("the first StopTask");
    second.must("the second StopTask");
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}
