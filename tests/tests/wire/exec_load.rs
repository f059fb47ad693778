//! Many commands, concurrent and one after the other, leave nothing behind.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use fixtures::{
    busybox::Images,
    must::Must,
    process,
    wait::{eventually, seconds},
};
use kit::{node::Node, plugin::Plugin, task::Task};

use crate::exec_streaming::sleeper;

/// The duration of the load (`OCI_RS_CHECK_SECONDS=60` for the documented measurement).
fn check_seconds() -> u64 {
    std::env::var("OCI_RS_CHECK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3)
}

/// The number of checks at the same time. A machine that is too slow for twenty a second would otherwise run more and
/// more of them at once, and its memory would grow for this reason.
const AT_ONCE: usize = 8;

/// Runs twenty checks a second at fixed times, later ones on a slow machine, and waits for the last one.
async fn checks(plugin: &Arc<Plugin>, task: &Task, count: u64) {
    let mut ticks = tokio::time::interval(Duration::from_millis(50));
    let mut running = tokio::task::JoinSet::new();
    for number in 0..count {
        ticks.tick().await;
        if running.len() == AT_ONCE {
            running.join_next().await.must("a running check").must("a check");
        }
        let (plugin, id) = (Arc::clone(plugin), task.id().to_owned());
        running.spawn(async move {
            let script = format!("echo {number}; sleep 0.02; exit {}", number % 3);
            let answer = plugin.exec(&id, &["/bin/sh", "-c", &script], seconds(20)).await.must("ExecTask");
            assert_eq!(answer.result.must("a result").exit_code, (number % 3) as i32);
            assert_eq!(String::from_utf8_lossy(&answer.stdout), format!("{number}\n"));
        });
    }
    while let Some(check) = running.join_next().await {
        check.must("a check");
    }
}

#[tokio::test]
async fn twenty_execs_a_second_leave_nothing_behind() {
    const GROWTH: u64 = 2 << 20;
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = sleeper(&node, &mut plugin, &images).await;
    let plugin = Arc::new(plugin);
    // Threads and caches of the first commands stay.
    checks(&plugin, &task, 40).await;
    let pid = plugin.process.pid();
    let look = || (plugin.descriptors().len(), process::children(pid).len(), task.groups.members().len());
    let (before, memory) = (look(), process::anonymous_memory(pid));
    let count = check_seconds() * 20;
    checks(&plugin, &task, count).await;
    let steady = eventually(seconds(3), || look() <= before).await;
    let now = process::anonymous_memory(pid);
    // A long run prints its figures.
    #[allow(clippy::print_stdout)]
    {
        println!(
            "{count} checks: descriptors, children, members {before:?} -> {:?}; anonymous {memory} -> {now}",
            look()
        );
    }
    assert!(steady, "descriptors, children, members: {before:?} before, {:?} after {count} checks", look());
    assert!(now < memory + GROWTH, "the plugin's memory grew from {memory} to {now} bytes in {count} checks");
    let plugin = Arc::into_inner(plugin).must("the plugin");
    plugin.end(&task).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn fifty_concurrent_sessions_succeed() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = sleeper(&node, &mut plugin, &images).await;
    plugin.sh(&task, "true").await;
    let held = || plugin.descriptors().iter().filter(|kind| kind.starts_with("pipe:") || kind.contains("pts")).count();
    let before = held();
    let mut sessions = Vec::new();
    for number in 0..50 {
        let tty = (number % 2 == 0).then_some((24, 80));
        let session = plugin.exec_streaming(task.id(), &["/bin/sh", "-c", "read x; echo got $x; exit 4"], tty).await;
        sessions.push(session.must("a session"));
    }
    // All commands run before the first one gets its line.
    let shells = || {
        let members: BTreeSet<i32> = task.groups.members().into_iter().collect();
        members.into_iter().filter(|pid| process::command_line(*pid).contains("echo got")).count()
    };
    assert!(eventually(seconds(20), || shells() == 50).await, "{} of 50 run", shells());
    for (number, session) in sessions.iter().enumerate() {
        session.stdin(format!("{number}\n").as_bytes());
    }
    for (number, session) in sessions.into_iter().enumerate() {
        let outcome = session.finish(seconds(20)).await.must("a session");
        assert!(outcome.stdout.replace('\r', "").ends_with(&format!("got {number}\n")), "{outcome:?}");
        assert_eq!(outcome.code, 4);
    }
    let steady = eventually(seconds(3), || held() == before).await;
    assert!(steady, "{before} descriptors before, now {:#?}", plugin.descriptors());
    plugin.end(&task).await;
    node.finish(plugin).await;
}
