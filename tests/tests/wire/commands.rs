//! The operator's commands that show what runs on a node: as typed, without options, beside a plugin or without one.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use fixtures::{
    busybox::Images,
    cgroup::{Mode, mode},
    image::Compression,
    must::Must,
    wait::seconds,
};
use kit::{
    node::Node,
    plugin::{COOKIE, Plugin, PluginCommand},
    task::Task,
};
use rustix::fs::{FlockOperation, flock};
use serde_json::{Value as Json, json};

use crate::{
    host_volumes::{Client, ID, Spec},
    names::docker,
    operator::{run, sleeper},
};

/// The tasks that `oci-rs ps` shows.
async fn ps(node: &Node, args: &[&str]) -> Vec<Json> {
    let listed = run(node, &[&["ps", "--json"], args].concat()).await.well().json();
    listed.as_array().must("a list").clone()
}

/// A container's directory with these records.
fn container(node: &Node, id: &str, records: &[(&str, &str)]) {
    let directory = node.state_dir().join("tasks").join(id);
    fs::create_dir(&directory).must("a directory of a container");
    for (name, text) in records {
        fs::write(directory.join(name), text).must("a record");
    }
}

async fn started(node: &Node, plugin: &mut Plugin, images: &Images) -> Task {
    let task = node.task(&images.busybox()).name("web").port("http", "192.0.2.1", 20080, 80);
    let task =
        task.option("network_mode", json!("host")).sh("trap 'exit 3' TERM; sleep 1000 & wait").build(plugin).await;
    plugin.started(&task).await;
    task
}

#[tokio::test]
async fn a_running_task_is_shown_by_commands_without_options() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = started(&node, &mut plugin, &images).await;
    let alloc = task.config.alloc_id.clone();
    let short = format!("{}/web", &alloc[..8]);

    let listed = ps(&node, &[]).await;
    let [shown] = &listed[..] else { panic!("one task: {listed:?}") };
    let expected = json!({
        "plugin": "oci-rs", "allocation": alloc, "namespace": "default", "job": "kit", "group": "group", "task": "web",
        "image": images.busybox(), "state": "running", "pid": plugin.init_pid(&task), "exit_code": null,
        "monitor_pid": plugin.monitor_pid(&task), "memory_limit_bytes": 64 << 20, "problems": [],
        "ports": [{
            "label": "http", "host_ip": "192.0.2.1", "host_port": 20080, "container_port": 80, "protocol": null,
        }],
    });
    for (field, value) in expected.as_object().must("fields") {
        assert_eq!(&shown[field], value, "{field}: {shown}");
    }
    assert!(shown["memory_bytes"].as_u64() > Some(0) && shown["pids"].as_u64() >= Some(2), "{shown}");
    let table = run(&node, &["ps"]).await.well().out;
    for text in ["ALLOC", &alloc[..8], "kit", "web", "running", "192.0.2.1:20080->80"] {
        assert!(table.contains(text), "{text}: {table}");
    }
    assert_eq!(run(&node, &["ps", "-q"]).await.well().out, short);

    // Each name that a command prints is accepted.
    let container = shown["container"].as_str().must("a name");
    for name in [&short, &alloc, &alloc[..8], "web", "kit", container] {
        let found = run(&node, &["inspect", name]).await.well().json();
        assert_eq!((&found[0]["container"], &found[0]["type"]), (&shown["container"], &json!("task")), "{name}");
        assert!(found[0]["plan"]["args"].to_string().contains("sleep 1000"), "{name}");
    }
    let image = run(&node, &["inspect", &images.busybox()]).await.well().json();
    assert_eq!((&image[0]["type"], &image[0]["digest"]), (&json!("image"), &shown["digest"]));
    let digest = image[0]["digest"].as_str().must("a digest")[..19].to_owned();
    assert_eq!(run(&node, &["inspect", &digest]).await.well().json()[0]["reference"], json!(images.busybox()));
    let unknown = run(&node, &["inspect", "no-such"]).await;
    assert!(unknown.code == 4 && unknown.err.contains("no task and no image"), "{} {}", unknown.code, unknown.err);

    for (filter, count) in
        [("job=k*", 1), ("job=other", 0), ("state=running", 1), ("status=exited", 0), ("image=*busybox*", 1)]
    {
        assert_eq!(ps(&node, &["--filter", filter]).await.len(), count, "{filter}");
    }
    let measured = run(&node, &["stats", "--no-stream", "--json", &short]).await.well().json();
    assert_eq!(measured[0]["container"], shown["container"]);
    assert!(measured[0]["memory_bytes"].as_u64() > Some(0), "{measured}");

    plugin.stop(task.id(), seconds(10), "").await.must("StopTask");
    plugin.wait(task.id()).await;
    assert_eq!(ps(&node, &[]).await.len(), 0, "only running tasks without -a");
    let ended = ps(&node, &["-a"]).await;
    assert_eq!((&ended[0]["state"], &ended[0]["exit_code"]), (&json!("exited"), &json!(3)), "{ended:?}");
    assert!(run(&node, &["ps", "-a"]).await.well().out.contains("exited (3)"));
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    assert_eq!(ps(&node, &["-a"]).await.len(), 0);
    node.finish(plugin).await;
}

#[tokio::test]
async fn host_volumes_are_listed_with_their_users() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let (images, client) = (Images::start().await, Client::new().on(&node));
    let spec = Spec { parameters: json!({"read_only": "true", "fs": "ext4"}), ..Spec::limited(0, 16 << 20) };
    client.create(&spec).well();
    let path = client.path(ID);
    let task = node.task(&images.busybox()).mount(&path, "/data", true, "").sh("sleep 1000").build(&mut plugin).await;
    plugin.started(&task).await;
    let name = run(&node, &["ps", "-q"]).await.well().out;
    let listed = run(&node, &["volume", "ls", "--json"]).await.well().json();
    let volume = &listed[0];
    assert_eq!((&volume["name"], &volume["id"], &volume["type"]), (&json!("db"), &json!(ID), &json!("host")));
    assert_eq!((&volume["used_by"], &volume["directory"]), (&json!([name]), &json!(path)));
    assert_eq!((&volume["mechanism"], &volume["read_only"]), (&json!("ext4 in a file"), &json!(true)));
    let [limit, disk] = ["limit_bytes", "disk_bytes"].map(|name| volume[name].as_u64().must("a number"));
    assert!((8 << 20..=16 << 20).contains(&limit) && disk > 0 && disk < limit, "{volume}");
    let text = run(&node, &["volume", "ls"]).await.well().out;
    for part in ["db", "host, ext4 in a file, read-only", "MiB", &name, &path.display().to_string()] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let used = run(&node, &["df", "--json"]).await.well().json();
    let kind = &used["summary"][4];
    assert_eq!((&kind["type"], &kind["total"], &kind["active"]), (&json!("host volumes"), &json!(1), &json!(1)));
    assert_eq!((&kind["bytes"], &kind["reclaimable_bytes"]), (&json!(disk), &json!(0)), "Nomad removes it");
    assert_eq!(used["host_volumes"], json!([{"volume": "db", "id": ID, "bytes": disk}]));
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    client.delete(&spec).well();
    assert_eq!(run(&node, &["volume", "ls", "--json"]).await.well().json(), json!([]));
    node.finish(plugin).await;
}

#[tokio::test]
async fn disk_usage_networks_and_volumes_are_shown() {
    let node = Node::new();
    let mut plugin = node.launch_with(json!({"volumes": {"enabled": true}, "gc": {"image": false}})).await;
    let images = Images::start().await;
    let mount = json!([{"type": "volume", "target": "/data", "source": "cache"}]);
    let task = node.task(&images.busybox()).option("mount", mount).sh("sleep 1000").build(&mut plugin).await;
    plugin.started(&task).await;
    plugin.sh(&task, "head -c 300000 /dev/zero > /data/x; head -c 500000 /dev/zero > /y").await;
    let name = run(&node, &["ps", "-q"]).await.well().out;

    let used = run(&node, &["df", "--json"]).await.well().json();
    let kind = |index: usize, field: &str| used["summary"][index][field].as_u64().must("a number");
    assert_eq!((kind(0, "total"), kind(0, "active"), kind(0, "reclaimable_bytes")), (1, 1, 0), "images: {used}");
    assert!(kind(1, "total") == 1 && kind(1, "bytes") > 100_000, "layers: {used}");
    assert!(kind(2, "total") == 1 && kind(2, "bytes") >= 500_000, "writable layers: {used}");
    assert!(kind(3, "active") == 1 && kind(3, "bytes") >= 300_000, "volumes: {used}");
    let text = run(&node, &["df", "--verbose"]).await.well().out;
    assert!(text.contains("RECLAIMABLE") && text.contains(&name) && text.contains("cache"), "{text}");

    let volumes = run(&node, &["volume", "ls", "--json"]).await.well().json();
    assert_eq!((&volumes[0]["name"], &volumes[0]["used_by"]), (&json!("cache"), &json!([name])));
    let networks = run(&node, &["network", "ls", "--json"]).await.well().json();
    assert_eq!((&networks[0]["task"], &networks[0]["kind"]), (&json!(name), &json!("host")));
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    let used = run(&node, &["df", "--json"]).await.well().json();
    assert!(used["summary"][0]["reclaimable_bytes"].as_u64() > Some(100_000), "{used}");
    assert_eq!(used["summary"][3]["reclaimable_bytes"], used["summary"][3]["bytes"]);
    node.finish(plugin).await;
}

/// Nothing here waits for a plugin, for a lock that it holds, or for a record that it can read.
#[tokio::test]
async fn commands_need_neither_a_plugin_nor_locks_nor_good_records() {
    let node = Node::new();
    let before = run(&node, &["ps"]).await;
    assert_eq!((before.code, before.err.as_str()), (0, ""), "no plugin has run yet: {}", before.out);
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh("sleep 1000").build(&mut plugin).await;
    let handle = plugin.started(&task).await;
    plugin.process.kill().await;

    let own = ps(&node, &[]).await[0]["container"].as_str().must("a container").to_owned();
    let directory = node.state_dir().join("tasks").join(&own);
    let locked = fs::File::open(&directory).must("the task's directory");
    flock(&locked, FlockOperation::LockExclusive).must("the task's lock");
    let plan = fs::read_to_string(directory.join("plan.json")).must("the plan");
    let newer = plan.replacen("\"version\":1", "\"version\":99", 1);
    container(&node, "half.task.1", &[("plan.json", &plan[..plan.len() / 2]), ("container.json", "{\"version\":1,")]);
    container(&node, "newer.task.1", &[("plan.json", &newer), ("container.json", "{\"version\":99}")]);
    container(&node, "starting.task.1", &[("unclaimed", "")]);

    let shown = run(&node, &["ps", "--json"]).await.well();
    let states: Vec<(String, String)> = shown
        .json()
        .as_array()
        .must("a list")
        .iter()
        .map(|task| {
            let text = |field: &str| task[field].as_str().unwrap_or_default().to_owned();
            (text("container"), text("state"))
        })
        .collect();
    for (container, state) in [
        (own.as_str(), "running"),
        ("half.task.1", "unreadable"),
        ("newer.task.1", "unreadable"),
        ("starting.task.1", "starting"),
    ] {
        assert!(states.iter().any(|(id, is)| id == container && is == state), "{container}: {states:?}");
    }
    assert!(shown.err.contains("half.task.1") && shown.err.contains("a newer oci-rs wrote it"), "{}", shown.err);
    for args in [&["network", "ls"][..], &["volume", "ls"], &["df"], &["stats", "--no-stream"]] {
        run(&node, args).await.well();
    }

    // A pointer that cannot be read is as none.
    let pointer = node.root().join("run/plugins/oci-rs.json");
    let text = fs::read_to_string(&pointer).must("the pointer");
    let mode = |path: &Path| fs::metadata(path).must("metadata").permissions().mode() & 0o777;
    assert_eq!((mode(&pointer), mode(pointer.parent().must("a directory"))), (0o600, 0o700));
    fs::write(&pointer, &text[..text.len() / 2]).must("half a pointer");
    let without = run(&node, &["ps", "--state-dir", &node.state_dir().display().to_string()]).await.well();
    assert!(without.out.contains("running") && !without.err.contains("oci-rs.json"), "options win: {}", without.err);
    let broken = run(&node, &["volume", "ls"]).await;
    assert!(broken.err.contains("oci-rs.json"), "{}", broken.err);

    drop(locked);
    for id in ["half.task.1", "newer.task.1", "starting.task.1"] {
        fs::remove_dir_all(node.state_dir().join("tasks").join(id)).must("remove the container");
    }
    let plugin = node.launch().await;
    plugin.recover(&handle).await.must("RecoverTask");
    assert_ne!(fs::read_to_string(&pointer).must("the pointer"), text, "the next plugin has replaced it");
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

#[tokio::test]
async fn both_plugins_of_a_node_are_shown_and_an_option_picks_one() {
    let node = Node::new();
    let images = Images::start().await;
    let (mut ours, mut dockers) = (node.launch().await, node.launch_as(docker(&node), json!({})).await);
    let own = sleeper(&node, &mut ours, &images.busybox()).await;
    let other = sleeper(&node, &mut dockers, &images.busybox()).await;
    for (args, mut expected) in [
        (&[][..], vec![("oci-rs", &own), ("docker", &other)]),
        (&["--plugin", "oci-rs"], vec![("oci-rs", &own)]),
        (&["--plugin", "docker"], vec![("docker", &other)]),
        (&["--filter", "plugin=docker"], vec![("docker", &other)]),
    ] {
        let mut shown: Vec<(String, String)> = ps(&node, args)
            .await
            .iter()
            .map(|task| {
                let text = |field: &str| task[field].as_str().unwrap_or_default().to_owned();
                (text("plugin"), text("allocation"))
            })
            .collect();
        shown.sort();
        expected.sort_by_key(|(plugin, task)| (*plugin, &task.config.alloc_id));
        let expected: Vec<(String, String)> =
            expected.iter().map(|(plugin, task)| ((*plugin).to_owned(), task.config.alloc_id.clone())).collect();
        assert_eq!(shown, expected, "{args:?}");
    }
    assert_eq!(run(&node, &["ps", "--plugin", "podman"]).await.code, 2);
    // Both have the same images, so nothing has to be picked.
    let images_listed = run(&node, &["images", "--json"]).await.well().json();
    assert_eq!(images_listed[0]["used_by"].as_array().map(Vec::len), Some(2), "{images_listed}");
    ours.destroy(own.id(), true).await.must("DestroyTask");
    dockers.destroy(other.id(), true).await.must("DestroyTask");
    dockers.shutdown().await;
    node.finish(ours).await;
}

#[tokio::test]
async fn images_have_dockers_commands_and_names() {
    let node = Node::new();
    let plugin = node.launch().await;
    let images = Images::start().await;
    let (one, other) = (images.busybox(), images.packed(Compression::Zstd));
    for name in [&one, &other] {
        run(&node, &["pull", name]).await.well();
    }
    let listed = run(&node, &["images", "--json"]).await.well().json();
    assert_eq!(listed.as_array().map(Vec::len), Some(2));
    let steps = run(&node, &["image", "history", &one, "--json"]).await.well().json();
    assert!(steps.as_array().must("a list").iter().any(|step| step["bytes"].as_u64() > Some(100_000)), "{steps}");
    // Both have the same layer.
    let tree = run(&node, &["image", "tree", "--json"]).await.well().json();
    assert_eq!(
        (tree.as_array().map(Vec::len), tree[0]["images"].as_array().map(Vec::len)),
        (Some(1), Some(2)),
        "{tree}"
    );
    let foreseen = run(&node, &["image", "prune", "--dry-run", "--json"]).await.well().json();
    assert_eq!((foreseen["would_remove"].as_array().map(Vec::len), &foreseen["layers"]), (Some(2), &json!(1)));
    assert_eq!(run(&node, &["images", "--json"]).await.well().json(), listed, "nothing was removed");
    let digest = listed[0]["digest"].as_str().must("a digest");
    let removed = run(&node, &["rmi", &digest["sha256:".len()..][..12]]).await.well().out;
    assert_eq!(removed, format!("removed {}", listed[0]["reference"].as_str().must("a name")));
    assert_eq!(run(&node, &["rmi", digest]).await.code, 4);
    run(&node, &["image", "remove", listed[1]["reference"].as_str().must("a name")]).await.well();
    assert_eq!(run(&node, &["images", "-q"]).await.well().out, "");
    node.finish(plugin).await;
}

/// A shell opens the executable, because the user may not look into its directory.
const AS_USER: &str = "exec 3<\"$0\" && exec setpriv --reuid 65534 --regid 65534 --clear-groups /proc/self/fd/3 \"$@\"";

/// What plugins leave is for root alone. Some commands need none of it.
#[tokio::test]
async fn a_user_is_told_to_be_root_and_only_where_it_is_needed() {
    let node = Node::new();
    let plugin = node.launch().await;
    let root = "oci-rs: what the plugins of this node have left is for root alone: run this as root";
    let missing = "no-such-layout";
    for (args, code, expected) in [
        (&["ps"][..], 1, root),
        (&["images"], 1, root),
        (&["pull", "registry.example/web:1"], 1, root),
        (&["rollback"], 1, root),
        (&["exec", "web", "true"], 125, root),
        (&["image", "convert", missing, "other"], 1, missing),
        (&["image", "push", missing, "registry.example/web:1"], 1, missing),
        (&["version"], 0, ""),
    ] {
        let binary = kit::plugin::binary().display().to_string();
        let command = PluginCommand::new(node.root()).without(COOKIE.0).binary(Path::new("/bin/bash"));
        let mut process = command.args(&["-c", AS_USER, &binary]).args(args).spawn();
        let err = process.stderr.all(seconds(30)).await.join("\n");
        assert_eq!(process.ended(seconds(30)).await.code(), Some(code), "{args:?}: {err}");
        assert!(err.contains(expected) && err.lines().count() <= 1, "{args:?}: {err}");
    }
    node.finish(plugin).await;
}

#[tokio::test]
async fn the_version_tells_the_build_and_the_kernel() {
    let node = Node::new();
    let told = run(&node, &["version", "--json"]).await.well().json();
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    let cgroups = if mode() == Mode::V1 { "v1" } else { "v2" };
    assert_eq!((&told["kernel"], &told["cgroups"]), (&json!(kernel), &json!(cgroups)), "{told}");
    assert!(told["libcontainer"].as_str().is_some_and(|version| version.contains('.')), "{told}");
    let pressure = Path::new("/proc/pressure/memory").exists();
    assert_eq!(told["features"]["pressure_stall_information"], json!(pressure), "{told}");
    let version = told["version"].as_str().must("a version");
    let line = run(&node, &["--version"]).await.well().out;
    assert!(line.starts_with(&format!("oci-rs {version}")), "{line}");
    // A build that knows its commit names it in all three.
    let table = run(&node, &["version"]).await.well().out;
    assert!(table.contains(version) && table.contains(&kernel), "{table}");
    if let Some(commit) = told["commit"].as_str() {
        assert!(line.contains(commit) && table.contains(commit), "{line} {table}");
    }
    node.finish_without_plugin().await;
}
