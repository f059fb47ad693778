//! Volumes with options of docker's volume driver `local`: mounted for the first task, unmounted after the last.

use std::{fs, path::Path};

use fixtures::{busybox::Images, must::Must, wait::seconds};
use kit::{calls::recoverable, node::Node, task::TaskBuilder};
use serde_json::{Value as Json, json};

pub const IDLE: &str = "while :; do sleep 1000; done";

/// A mount of a volume at /data. Without a name it is the task's own.
pub fn volume(name: &str, options: Json) -> Json {
    let mut mount = json!({
        "type": "volume", "target": "/data",
        "volume_options": { "driver_config": { "name": "local", "options": options } },
    });
    if !name.is_empty() {
        mount["source"] = json!(name);
    }
    json!([mount])
}

fn tmpfs() -> Json {
    json!({ "type": "tmpfs", "device": "tmpfs", "o": "size=1m,mode=700" })
}

fn enabled() -> Json {
    json!({ "volumes": { "enabled": true, "mount_timeout": "20s" } })
}

/// The mounted volumes in the machine's table.
pub fn mounted(node: &Node) -> usize {
    let table = fs::read_to_string("/proc/self/mountinfo").must("the table of mounts");
    let volumes = node.state_dir().join("volumes");
    table
        .lines()
        .filter(|line| line.split(' ').nth(4).is_some_and(|point| Path::new(point).starts_with(&volumes)))
        .count()
}

/// Whether a text is in a file below a directory.
fn is_written(text: &str, directory: &Path) -> bool {
    fs::read_dir(directory).must("a directory").flatten().any(|entry| {
        let path = entry.path();
        match path.symlink_metadata() {
            Ok(metadata) if metadata.is_dir() => is_written(text, &path),
            Ok(metadata) if metadata.is_file() => {
                fs::read(&path).is_ok_and(|bytes| bytes.windows(text.len()).any(|part| part == text.as_bytes()))
            }
            _ => false,
        }
    })
}

#[tokio::test]
async fn a_volume_with_options_is_shared_until_its_last_task_ends() {
    let node = Node::new();
    let mut plugin = node.launch_with(enabled()).await;
    let images = Images::start().await;
    let task = |mount: Json| node.task(&images.busybox()).sh(IDLE).option("mount", mount);
    let first = task(volume("cache", tmpfs())).build(&mut plugin).await;
    let second = task(volume("cache", tmpfs())).build(&mut plugin).await;
    plugin.started(&first).await;
    let handle = plugin.started(&second).await;
    plugin.streams.event("the mount", |event| event.message == "Mounting a volume: tmpfs tmpfs").await;
    plugin.sh(&first, "echo shared > /data/x").await;
    assert_eq!(
        (plugin.sh(&second, "cat /data/x; stat -c %a /data").await.as_str(), mounted(&node)),
        ("shared\n700", 1)
    );
    plugin.end(&first).await;

    // The next plugin knows the users, and a job that only names the volume gets it too.
    plugin.process.kill().await;
    let mut plugin = node.launch_with(enabled()).await;
    plugin.recover(&handle).await.must("RecoverTask");
    let named = json!([{ "type": "volume", "target": "/data", "source": "cache" }]);
    let third = task(named.clone()).build(&mut plugin).await;
    plugin.started(&third).await;
    plugin.end(&second).await;
    assert_eq!((plugin.sh(&third, "cat /data/x").await.as_str(), mounted(&node)), ("shared", 1));
    plugin.end(&third).await;
    assert_eq!(mounted(&node), 0);

    // Mounted anew: a tmpfs begins empty.
    let fourth = task(named).build(&mut plugin).await;
    plugin.started(&fourth).await;
    assert_eq!(plugin.sh(&fourth, "ls /data; stat -f -c %T /data").await, "tmpfs");
    plugin.end(&fourth).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_volume_without_a_name_is_the_tasks_own() {
    let node = Node::new();
    let mut plugin = node.launch_with(enabled()).await;
    let images = Images::start().await;
    let directory = node.root().join("host");
    fs::create_dir(&directory).must("a directory");
    let bind = json!({ "type": "none", "device": directory, "o": "bind" });
    let task = |options: Json| node.task(&images.busybox()).sh(IDLE).option("mount", volume("", options));
    let one = task(tmpfs()).build(&mut plugin).await;
    let two = task(tmpfs()).build(&mut plugin).await;
    let host = task(bind).build(&mut plugin).await;
    for task in [&one, &two, &host] {
        plugin.started(task).await;
        plugin.sh(task, "ls /data | wc -l | grep -q ^0; touch /data/x").await;
    }
    assert_eq!(mounted(&node), 3);
    for task in [&one, &two, &host] {
        plugin.end(task).await;
    }
    assert!(directory.join("x").exists());
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_volume_that_cannot_be_mounted_leaves_nothing() {
    let node = Node::new();
    let mut plugin = node.launch_with(enabled()).await;
    let images = Images::start().await;
    let password = "sEcr3t-of-the-share";
    let builder = |mount: Json| -> TaskBuilder<'_> { node.task(&images.busybox()).sh(IDLE).option("mount", mount) };
    let nas =
        json!({ "type": "cifs", "device": "//127.0.0.1/x", "o": format!("username=u,password={password},port=9") });
    for (options, expected) in [
        (nas, "mounting cifs //127.0.0.1/x failed with "),
        (json!({ "type": "tmpfs", "device": "tmpfs", "o": "sizze=1" }), "the kernel refuses option `o`: `sizze`"),
        (json!({ "type": "ext4", "device": "/dev/null" }), "volumes of the type \"ext4\" are not allowed on this node"),
        (json!({ "type": "none", "o": "bind" }), "`device` is missing"),
    ] {
        let task = builder(volume("v", options)).without_logs().build(&mut plugin).await;
        let status = plugin.start(&task).await.err().must("a refusal");
        assert!(status.message().contains(expected) && !status.message().contains(password), "{status}");
    }
    let (used, other) = (tmpfs(), json!({ "type": "tmpfs", "device": "tmpfs", "o": "size=2m" }));
    let user = builder(volume("v", used)).build(&mut plugin).await;
    plugin.started(&user).await;
    let late = builder(volume("v", other.clone())).without_logs().build(&mut plugin).await;
    let status = plugin.start(&late).await.err().must("a refusal");
    assert!(status.message().contains("another task of this node uses it with other options"), "{status}");
    assert!(recoverable(&status), "it may work after the other task");
    plugin.end(&user).await;
    plugin.started(&late).await;
    plugin.end(&late).await;
    assert!(!is_written(password, &node.state_dir()) && !is_written(password, &node.data_dir()));
    let log = plugin.process.stderr.so_far();
    assert!(log.iter().all(|line| !line.contains(password)));
    node.finish(plugin).await;
}

/// A start that fails after the volume was mounted.
#[tokio::test]
async fn a_start_that_fails_releases_its_volumes() {
    let node = Node::new();
    let mut plugin = node.launch_with(enabled()).await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).command("/no/such/program", &[]).option("mount", volume("v", tmpfs()));
    let task = task.build(&mut plugin).await;
    plugin.start(&task).await.err().must("a refusal");
    assert_eq!(mounted(&node), 0);
    plugin.destroy(task.id(), true).await.ok();
    assert!(task.stdout().all(seconds(5)).await.is_empty());
    node.finish(plugin).await;
}
