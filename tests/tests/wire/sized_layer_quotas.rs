//! Writable layers with a project quota. They need a kernel with quotas: that of the virtual machine has them.

use std::{fs, path::PathBuf, process::Command, time::Duration};

use fixtures::{
    busybox::Images,
    must::Must,
    wait::{eventually, seconds},
};
use kit::{
    node::Node,
    plugin::{Plugin, PluginCommand},
    project_quota::{ProjectQuota, is_required, limited_projects, project_quota},
    task::Task,
};
use rustix::mount::{UnmountFlags, mount_bind, unmount};
use serde_json::{Value as Json, json};

use crate::{
    host_volume_copies::NodeDisk,
    host_volume_quotas::disks,
    operator::run,
    sized_layers::{IDLE, MEBIBYTE, exec, running, space},
};

/// A task with a limit of 8 MiB, ready to start. Linux before 6.3 cannot map the ids of a tmpfs, and a task with one
/// runs in the node's user namespace. So the secrets of this one are on the disk.
async fn limited(node: &Node, plugin: &mut Plugin, images: &Images) -> Task {
    let task = node.task(&images.busybox()).sh(IDLE).option("storage_opt", json!({"size": "8M"})).build(plugin).await;
    let secrets = task.dir().join("secrets");
    unmount(&secrets, UnmountFlags::empty()).must("unmounted");
    mount_bind(&secrets, &secrets).must("mounted");
    task
}

/// The plugin's options for a node with its `data_dir` on a disk.
fn on(disk: &NodeDisk) -> Json {
    json!({"data_dir": data(disk)})
}

fn data(disk: &NodeDisk) -> PathBuf {
    disk.path().join("oci-rs")
}

/// The directories of writable layers.
fn layers(disk: &NodeDisk) -> Vec<PathBuf> {
    let entries = fs::read_dir(data(disk).join("containers")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| !path.ends_with(".probe")).collect()
}

/// The project quota of the only layer, if it has one.
#[track_caller]
fn project(disk: &NodeDisk) -> Option<ProjectQuota> {
    let [layer] = &layers(disk)[..] else { panic!("{:?}", layers(disk)) };
    let limited = layer.join("limited");
    limited.exists().then(|| project_quota(&limited).must("a quota"))
}

/// Whether the task has a user namespace of its own.
async fn is_mapped(plugin: &Plugin, task: &Task) -> bool {
    let map = plugin.sh(task, "cat /proc/self/uid_map").await;
    !map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Whether a layer without a project quota is a failure: tasks can have user namespaces, and the machine has quotas.
fn is_quota_required() -> bool {
    is_required() && std::env::var_os("OCI_RS_USERNS").is_none_or(|mode| mode != "off")
}

/// No layer and no limit of any project is left.
async fn assert_released(disk: &NodeDisk, point: &str) {
    let is_gone = eventually(seconds(20), || layers(disk).is_empty()).await;
    assert!(is_gone, "{} {point}: {:?}", disk.kind, layers(disk));
    assert_eq!(limited_projects(&disk.path()).must("the projects"), Vec::<u32>::new(), "{} {point}", disk.kind);
}

#[tokio::test]
async fn a_limit_is_a_project_quota_for_a_task_with_a_user_namespace() {
    for disk in disks() {
        let (node, images) = (Node::new(), Images::start().await);
        let mut plugin = node.launch_with(on(&disk)).await;
        let task = limited(&node, &mut plugin, &images).await;
        plugin.started(&task).await;
        let name = task.id().split('/').next().must("an allocation");
        let said = run(&node, &["inspect", name]).await.json();
        let mechanism = said[0]["writable_layer_limit"].clone();
        let Some(found) = project(&disk) else {
            assert!(!is_quota_required(), "OCI_RS_QUOTAS=1, and the layer has no project quota");
            assert_eq!(mechanism, "ext4 in a file");
            assert!(!is_mapped(&plugin, &task).await, "a task with a user namespace has a quota");
            plugin.end(&task).await;
            node.finish(plugin).await;
            continue;
        };
        assert_eq!(mechanism, "project quota");
        assert!(is_mapped(&plugin, &task).await, "a task in the node's user namespace could leave the quota");
        assert!((8 * MEBIBYTE..9 * MEBIBYTE).contains(&found.bytes) && found.files > 2000, "{found:?}");
        let (total, free) = space(&plugin, &task).await;
        assert!(free + 128 * 1024 >= 8 * MEBIBYTE && total < 9 * MEBIBYTE, "{free} of {total} bytes are free");
        let mut stats = plugin.stats(task.id(), Duration::from_millis(100)).await.must("TaskStats");
        let (code, text) = exec(&plugin, &task, "dd if=/dev/zero of=/big bs=64k count=200").await;
        assert!(code != 0 && is_full(&text), "{}: {code}: {text}", disk.kind);
        let is_told = |event: &proto::driver::DriverTaskEvent| event.message.contains("writable layer is full");
        stats.message().await.must("an answer").must("statistics");
        let told = plugin.streams.event("a full layer", is_told).await;
        assert!(told.message.contains("8.0 MiB"), "{told:?}");
        // Mounts of the task have their own space, and files that are removed make room.
        plugin.sh(&task, "dd if=/dev/zero of=/local/data bs=64k count=200 2>/dev/null").await;
        plugin.sh(&task, "rm /big && dd if=/dev/zero of=/big bs=64k count=100 2>/dev/null && rm /big").await;
        // Empty files have a limit too.
        let many =
            "mkdir /many && cd /many && i=0; while true > $i; do i=$((i + 1)); done 2>&1; ls | wc -l; rm -r /many";
        let (_, text) = exec(&plugin, &task, many).await;
        let made = text.lines().last().and_then(|line| line.trim().parse::<u64>().ok());
        assert!(made.is_some_and(|made| made > 1000 && made < found.files), "{}: {text}", disk.kind);
        let refusal = leave(&task);
        assert!(refusal.contains("Invalid argument"), "{}: {refusal}", disk.kind);
        plugin.end(&task).await;
        assert_released(&disk, "a removal").await;
        node.finish(plugin).await;
    }
}

fn is_full(text: &str) -> bool {
    text.contains("No space left on device") || text.contains("uota exceeded")
}

/// Tries to move a file of the task to another project, with all rights in the task's user namespace. Returns the
/// error.
fn leave(task: &Task) -> String {
    let Some(pid) = task.groups.members().into_iter().next() else { panic!("no process") };
    let file = format!("/proc/{pid}/root/etc/passwd");
    let mut command = Command::new("nsenter");
    command.args(["-t", &pid.to_string(), "-U", "chattr", "-p", "77", &file]);
    let said = command.output().must("nsenter");
    assert!(!said.status.success(), "a task could move its files out of the project");
    String::from_utf8_lossy(&said.stderr).into_owned()
}

#[tokio::test]
async fn a_task_in_the_nodes_user_namespace_gets_a_file_system_of_its_own() {
    for disk in disks() {
        let (node, images) = (Node::new(), Images::start().await);
        let options = json!({"data_dir": data(&disk), "userns": {"mode": "off"}});
        let mut plugin = node.launch_with(options).await;
        let task = running(&node, &mut plugin, &images, json!({"size": "8M"})).await;
        assert_eq!(project(&disk), None);
        let (code, text) = exec(&plugin, &task, "dd if=/dev/zero of=/big bs=64k count=200").await;
        assert!(code != 0 && text.contains("No space left on device"), "{code}: {text}");
        plugin.end(&task).await;
        node.finish(plugin).await;
    }
}

/// A removal that is killed at any of its steps leaves no limit once it is repeated.
#[tokio::test]
async fn a_killed_start_or_removal_leaves_no_limit() {
    for disk in disks() {
        for point in ["destroy-before-layer", "destroy-after-limit", "destroy-before-directory"] {
            let (node, images) = (Node::new(), Images::start().await);
            let armed = PluginCommand::new(node.root()).env("OCI_RS_FAILPOINT", point);
            let mut plugin = node.launch_as(armed, on(&disk)).await;
            let task = limited(&node, &mut plugin, &images).await;
            plugin.started(&task).await;
            let found = project(&disk);
            let killed = plugin.destroy(task.id(), true).await.is_err();
            assert!(found.is_some() || !is_quota_required(), "{point}: the layer has no project quota");
            assert!(killed || found.is_none() || !cfg!(debug_assertions), "{point}");
            plugin.process.kill().await;
            let mut plugin = node.launch_with(on(&disk)).await;
            // The plugin recognizes the agent by its next task, and then removes what is left.
            let next = running(&node, &mut plugin, &images, json!({})).await;
            plugin.end(&next).await;
            assert_released(&disk, point).await;
            node.finish(plugin).await;
        }
        // The process that makes the container is killed.
        for point in ["creator-before-project", "creator-before-limit", "creator-after-limit"] {
            let (node, images) = (Node::new(), Images::start().await);
            let armed = PluginCommand::new(node.root()).env("OCI_RS_FAILPOINT", point);
            let mut plugin = node.launch_as(armed, on(&disk)).await;
            let task = limited(&node, &mut plugin, &images).await;
            let killed = plugin.start(&task).await.is_err();
            // Without user namespaces the point is not passed.
            assert!(killed || !is_quota_required() || !cfg!(debug_assertions), "{point}");
            plugin.destroy(task.id(), true).await.ok();
            assert_released(&disk, point).await;
            node.finish(plugin).await;
        }
    }
}
