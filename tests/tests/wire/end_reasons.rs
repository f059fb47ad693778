//! Events about a task's limits and end, and the memory of an idle task.

use std::{collections::BTreeMap, fs};

use fixtures::{
    busybox::Images,
    must::Must,
    process,
    wait::{eventually, seconds},
};
use kit::{node::Node, plugin::Plugin, task::Task};
use serde_json::json;

async fn told(plugin: &Plugin, task: &Task, text: &str) -> String {
    let event = plugin.streams.event(text, |event| event.task_id == task.id() && event.message.contains(text)).await;
    assert_eq!((event.alloc_id.as_str(), event.task_name.as_str()), (task.alloc.id.as_str(), "main"));
    event.message
}

/// Only the kernel's log names the killed process. Not every machine allows reading it.
fn kernel_log() -> bool {
    fs::File::open("/dev/kmsg").is_ok()
}

#[tokio::test]
async fn an_oom_kill_reports_limit_peak_and_killed_process() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    // The killed process is the command itself, or a child of the command.
    for (script, code) in [("exec tail /dev/zero", 137), ("tail /dev/zero; exit 4", 4), ("tail /dev/zero; exit 0", 0)] {
        let task = node.task(&images.busybox()).sh(script).resources(100, 24, 0).build(&mut plugin).await;
        plugin.started(&task).await;
        let exit = plugin.wait(task.id()).await;
        assert_eq!((exit.code, exit.oom), (code, true), "{exit:?}");
        let text = told(&plugin, &task, "Out of memory: the kernel killed 1 process").await;
        assert!(text.contains("limit 24.0 MiB"), "{text}");
        if kernel_log() {
            assert!(text.contains("the last one tail (process "), "{text}");
            assert!(code == 0 || exit.err.contains("killed: tail"), "{exit:?}");
        }
        // Kernels before 5.19 have no peak value on cgroup v2.
        assert!(text.contains("most used 2") || fixtures::cgroup::mode() == fixtures::cgroup::Mode::V2, "{text}");
        plugin.destroy(task.id(), true).await.must("DestroyTask");
    }
    node.finish(plugin).await;
}

/// The next plugin reports an OOM kill that happened while no plugin was running.
#[tokio::test]
async fn an_oom_kill_while_no_plugin_runs_is_reported() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let script = "while [ ! -e /local/go ]; do sleep 0.05; done; exec tail /dev/zero";
    let task = node.task(&images.busybox()).sh(script).resources(100, 24, 0).build(&mut plugin).await;
    let handle = plugin.started(&task).await;
    plugin.process.kill().await;
    fs::write(task.dir().join("local/go"), "").must("tell the task to go on");
    let ended = eventually(seconds(20), || task.groups.members().is_empty()).await;
    assert!(ended, "it runs on: {:?}", task.groups.members());
    let plugin = node.launch().await;
    plugin.recover(&handle).await.must("RecoverTask");
    let exit = plugin.wait(task.id()).await;
    assert_eq!((exit.code, exit.oom), (137, true), "{exit:?}");
    let text = told(&plugin, &task, "Out of memory: the kernel killed 1 process").await;
    assert!(text.contains("limit 24.0 MiB"), "{text}");
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

#[tokio::test]
async fn reaching_the_pids_limit_is_reported() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let script = "for n in 1 2 3 4 5 6 7 8; do sleep 5 & done; exit 0";
    let task = node.task(&images.busybox()).sh(script).option("pids_limit", json!(5)).build(&mut plugin).await;
    plugin.started(&task).await;
    assert_ne!(plugin.wait(task.id()).await.code, 0);
    told(&plugin, &task, "limit on processes and threads (option pids_limit) refused it").await;
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

/// A monitor shares most of its memory with other monitors, and its addresses are randomized.
#[tokio::test]
async fn an_idle_task_uses_little_memory() {
    let node = Node::new();
    let images = Images::start().await;
    let mut bases = Vec::new();
    for _ in 0..2 {
        let mut plugin = node.launch().await;
        let task = node.task(&images.busybox()).sh("echo up; exec sleep 1000").build(&mut plugin).await;
        plugin.started(&task).await;
        task.stdout().contains("up", seconds(10)).await;
        let init = plugin.init_pid(&task);
        let monitor: i32 = process::status_field(init, "PPid").and_then(|pid| pid.parse().ok()).must("the monitor");
        let rollup = fs::read_to_string(format!("/proc/{monitor}/smaps_rollup")).must("its memory");
        let kib: BTreeMap<&str, u64> = rollup
            .lines()
            .filter_map(|line| {
                let (name, rest) = line.split_once(':')?;
                Some((name, rest.split_whitespace().next()?.parse().ok()?))
            })
            .collect();
        assert!(kib["Anonymous"] <= 256, "{rollup}");
        let maps = fs::read_to_string(format!("/proc/{monitor}/maps")).must("its mappings");
        bases.push(maps.split('-').next().must("an address").to_owned());
        plugin.end(&task).await;
        plugin.shutdown().await;
    }
    assert_ne!(bases[0], bases[1], "two plugins, two bases");
    node.finish_without_plugin().await;
}
