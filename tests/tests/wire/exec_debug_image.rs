//! `oci-rs:// image=… --`: programs of a debug image in a task without such programs.

use fixtures::{
    busybox::Images,
    must::Must,
    process,
    wait::{eventually, seconds},
};
use kit::{exec::Outcome, node::Node, plugin::Plugin, task::Task};
use serde_json::{Value as Json, json};
use tonic::Status;

fn allowed(images: &Images) -> Json {
    json!({"exec": {"cwd": true, "debug_images": [format!("{}/busybox*", images.host())]}})
}

async fn run(plugin: &Plugin, task: &Task, image: &str, script: &str) -> Result<Outcome, Status> {
    let image = format!("image={image}");
    let command = ["oci-rs://", &image, "--", "sh", "-c", script];
    plugin.exec_to_end(task.id(), &command, None, seconds(20)).await
}

async fn output(plugin: &Plugin, task: &Task, image: &str, script: &str) -> String {
    let outcome = run(plugin, task, image, script).await.must(script);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""), "{script}: {outcome:?}");
    outcome.stdout.trim_end().to_owned()
}

#[tokio::test]
async fn a_debug_image_sees_the_tasks_files_and_processes() {
    let node = Node::new();
    let images = Images::start().await;
    let mut plugin = node.launch_with(allowed(&images)).await;
    let task = node.task(&images.without_shell()).env("FROM_JOB", "yes").build(&mut plugin).await;
    plugin.started(&task).await;
    let tools = images.busybox();
    // The session has the debug image's root and mounts, and the task's processes and environment.
    assert_eq!(output(&plugin, &task, &tools, "test -x /task/sleep && test -e /bin/sh && pwd").await, "/");
    assert_eq!(
        output(&plugin, &task, &tools, "tr '\\0' ' ' </proc/1/cmdline; echo $FROM_JOB").await,
        "/sleep 1000 yes"
    );
    assert_eq!(
        output(&plugin, &task, &tools, "echo seen >/task/alloc/data/tools; cat /task/alloc/data/tools").await,
        "seen"
    );
    assert_eq!(
        output(&plugin, &task, &tools, "cat /etc/resolv.conf; cmp /etc/hosts /task/etc/hosts && echo same")
            .await
            .lines()
            .last(),
        Some("same")
    );
    let init = plugin.init_pid(&task);
    for namespace in ["pid", "ipc", "uts", "net", "cgroup"] {
        let own = std::fs::read_link(format!("/proc/{init}/ns/{namespace}")).must("a namespace");
        let seen = output(&plugin, &task, &tools, &format!("readlink /proc/self/ns/{namespace}")).await;
        assert_eq!(seen, own.to_string_lossy(), "{namespace}");
    }
    let outcome = plugin
        .exec_to_end(
            task.id(),
            &[
                "oci-rs://",
                &format!("image={tools}"),
                "cwd=/task/alloc",
                "--",
                "sh",
                "-c",
                "pwd; test -t 0 && readlink /proc/self/fd/0",
            ],
            Some((24, 80)),
            seconds(20),
        )
        .await
        .must("a session on a terminal");
    assert_eq!((outcome.stdout.as_str(), outcome.code), ("/task/alloc\r\n/dev/pts/0\r\n", 0));
    plugin.end(&task).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_debug_image_has_no_more_rights_than_the_task() {
    let node = Node::new();
    let images = Images::start().await;
    let mut plugin = node.launch_with(allowed(&images)).await;
    let task = node
        .task(&images.without_shell())
        .user("1000:1000")
        .option("security_opt", json!(["no-new-privileges=false"]))
        .build(&mut plugin)
        .await;
    plugin.started(&task).await;
    let tools = images.busybox();
    let init = plugin.init_pid(&task);
    for name in ["CapBnd", "CapEff", "CapPrm", "CapInh", "CapAmb", "Seccomp", "Uid", "Gid", "Groups"] {
        let own = process::status_field(init, name).must(name);
        let seen =
            output(&plugin, &task, &tools, &format!("sed -n 's/^{name}:[[:space:]]*//p' /proc/self/status")).await;
        assert_eq!(seen.trim(), own, "{name}");
    }
    // Set-user-id programs of the debug image give no rights, even if those of the task may do so.
    assert_eq!(output(&plugin, &task, &tools, "sed -n 's/^NoNewPrivs:[[:space:]]*//p' /proc/self/status").await, "1");
    for script in [
        "touch /new",
        "touch /etc/hosts",
        "mount -t tmpfs x /tmp",
        "mknod /tmp/null c 1 3",
        "ls /task/root/.",
        "echo x >/proc/sys/kernel/hostname",
    ] {
        let outcome = run(&plugin, &task, &tools, script).await.must(script);
        assert_ne!(outcome.code, 0, "{script}: {outcome:?}");
    }
    assert_eq!(output(&plugin, &task, &tools, "touch /tmp/new && echo fine").await, "fine");
    // The mounts below /proc are the task's, so masked files of the task are masked here, too.
    let masks = |table: &str| {
        let mut points: Vec<String> = table
            .lines()
            .filter_map(|line| line.split(' ').nth(4))
            .filter(|point| point.starts_with("/proc/"))
            .map(str::to_owned)
            .collect();
        points.sort();
        points
    };
    let own = std::fs::read_to_string(format!("/proc/{init}/mountinfo")).must("the task's mounts");
    let seen = output(&plugin, &task, &tools, "cat /proc/self/mountinfo").await;
    assert!(!masks(&own).is_empty());
    assert_eq!(masks(&seen), masks(&own));
    plugin.end(&task).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn only_allowed_debug_images_run_and_they_are_released_after_use() {
    let node = Node::new();
    let images = Images::start().await;
    let mut plugin = node.launch_with(allowed(&images)).await;
    let task = node.task(&images.without_shell()).build(&mut plugin).await;
    plugin.started(&task).await;
    for (image, words) in [
        (images.with_user("user"), "exec.debug_images"),
        (format!("{}/busybox-missing:1", images.host()), "busybox-missing"),
    ] {
        let refused = run(&plugin, &task, &image, "id").await.must("an answer in words");
        assert!(refused.code == 125 && refused.stderr.contains(words), "{image}: {refused:?}");
    }
    // The image has a lease only while the command runs.
    let leases = || std::fs::read_dir(node.data_dir().join("images/leases")).must("leases").count();
    let image = format!("image={}", images.busybox());
    let command = ["oci-rs://", &image, "--", "sh", "-c", "trap '' HUP; echo ready; while :; do sleep 0.1; done"];
    let mut session = plugin.exec_streaming(task.id(), &command, None).await.must("a session");
    session.until("ready", seconds(20)).await;
    assert_eq!(leases(), 2);
    drop(session);
    assert!(eventually(seconds(10), || leases() == 1).await, "{} leases", leases());
    assert!(!node.traces().processes.iter().any(|(_, line)| line.contains("echo ready")), "{}", node.traces());
    plugin.end(&task).await;
    node.finish(plugin).await;
}
