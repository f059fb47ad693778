//! `mount { type = "image" }`: another image, mounted read-only.

use std::fs;

use fixtures::{
    busybox::Images,
    image::{Entry, Layer},
    must::Must,
    registry::Auth,
    wait::{eventually, seconds},
};
use kit::{node::Node, plugin::Plugin, task::Task};
use serde_json::{Value as Json, json};

use crate::{
    operator::run,
    runtimes::{self, is_installed},
    user_namespaces,
};

const IDLE: &str = "while :; do sleep 1000; done";

/// Everything of an image below `srv` and `opt` that a container can see.
const LIST: &str = "find srv opt | sort | while read -r name; do stat -c '%n %F %a %u %g %Y %s %h' \"$name\"; \
                    if test -L \"$name\"; then readlink \"$name\"; \
                    elif test -f \"$name\"; then cat \"$name\"; fi; done";

/// A layer with files of several kinds.
fn lower() -> Layer {
    Layer::of([
        Entry::dir("srv").mode(0o750).owner(7, 8),
        Entry::dir("srv/models"),
        Entry::file("srv/models/weights", vec![b'w'; 100]).mode(0o640).owner(1000, 1000).mtime(1_600_000_000, 0),
        Entry::hard_link("srv/models/twin", "srv/models/weights"),
        Entry::file("srv/hidden", "hidden"),
        Entry::symlink("srv/latest", "models"),
        Entry::symlink("srv/absolute", "/srv/models/weights"),
        Entry::symlink("srv/out", "/etc/hostname"),
        Entry::symlink("srv/up", "../../../../etc/hostname"),
        Entry::symlink("srv/loop", "loop"),
        Entry::file("srv/tool", "#!/bin/sh\n").mode(0o4755).owner(1000, 1001),
        Entry::fifo("srv/pipe"),
        Entry::dir("opt"),
        Entry::file("opt/old", "old"),
    ])
}

/// A layer that hides and replaces files of the lower one.
fn upper() -> Layer {
    Layer::of([
        Entry::dir("srv").mode(0o755),
        Entry::whiteout("srv/hidden"),
        Entry::file("srv/new", "new"),
        Entry::dir("opt"),
        Entry::opaque("opt"),
        Entry::file("opt/new", "new"),
    ])
}

fn image_mount(image: &str, target: &str, sub_path: Option<&str>) -> Json {
    json!({"type": "image", "source": image, "target": target, "sub_path": sub_path})
}

/// A running task of the busybox image with these mounts.
async fn running(node: &Node, plugin: &mut Plugin, images: &Images, mounts: Json) -> Task {
    let task = node.task(&images.busybox()).sh(IDLE).option("mount", mounts).build(plugin).await;
    plugin.started(&task).await;
    task
}

fn count(node: &Node, directory: &str) -> usize {
    fs::read_dir(node.data_dir().join("images").join(directory)).must("a directory of the store").count()
}

/// What a container sees of the mounted images is compared with what containers of these images see, in each form in
/// which a node stores layers, also with a copied root and in a user namespace.
#[tokio::test]
async fn a_mounted_image_has_the_files_that_a_container_of_it_sees() {
    let images = Images::start().await;
    let userns = json!({"mode": "require", "first_id": 1 << 30, "ids": 16 * 65536});
    for (options, own_users) in [
        (json!({}), false),
        (json!({"layer_format": "directory"}), false),
        (json!({"rootfs": "copy"}), false),
        (json!({"userns": userns}), true),
        (json!({"userns": userns, "layer_format": "directory"}), true),
        (json!({"userns": userns, "rootfs": "copy"}), true),
    ] {
        if own_users && !user_namespaces::are_possible() {
            continue;
        }
        let node = Node::new();
        let mut plugin = node.launch_with(options.clone()).await;
        let root = images.with_layers("as-root", [lower(), upper()]);
        let shown = node.task(&root).sh(&format!("cd / && {LIST}")).build(&mut plugin).await;
        plugin.started(&shown).await;
        assert_eq!(plugin.wait(shown.id()).await.code, 0);
        let expected = shown.stdout().all(seconds(5)).await;
        plugin.end(&shown).await;
        for part in ["srv/new regular file", "srv regular", "hidden", "opt/old"] {
            assert_eq!(expected.contains(part), part.ends_with("new regular file"), "{part} in {expected}");
        }
        let (several, single) = (images.of_layers("several", [lower(), upper()]), images.of_layers("one", [lower()]));
        let mounts = json!([image_mount(&several, "/models", None), image_mount(&single, "/a/b/single", None)]);
        let task = running(&node, &mut plugin, &images, mounts).await;
        assert_eq!(plugin.sh(&task, &format!("cd /models && {LIST}")).await, expected.trim_end(), "{options}");
        assert_eq!(plugin.sh(&task, "cat /a/b/single/srv/hidden; ls /a/b/single/opt").await, "hiddenold");
        // The mount is read-only, also for the root of the container, and no set-user-id program of it has an effect.
        let attempt = "for file in /models/x /models/srv/new /a/b/single/x; do echo x > $file && echo changed; done; \
                       rm -rf /models/srv/new && echo removed; chmod 777 /models && echo changed; true";
        assert_eq!(plugin.sh(&task, &format!("( {attempt} ) 2>/dev/null")).await, "", "{options}");
        let flags = plugin.sh(&task, "grep ' /models ' /proc/mounts | cut -d' ' -f4").await;
        let flags: Vec<&str> = flags.split(',').collect();
        assert!(["ro", "nosuid", "nodev"].iter().all(|flag| flags.contains(flag)), "{flags:?}");
        plugin.end(&task).await;
        let left = fs::read_dir(node.data_dir().join("containers")).must("the writable layers").count();
        assert_eq!(left, 0, "{options}: a copy is left");
        node.finish(plugin).await;
    }
}

#[tokio::test]
async fn a_part_of_an_image_is_mounted_and_never_more() {
    let (node, images) = (Node::new(), Images::start().await);
    let mut plugin = node.launch().await;
    let image = images.of_layers("models", [lower(), upper()]);
    let part = |path: &str| image_mount(&image, &format!("/part/{path}"), Some(path));
    let mounts = json!([part("srv/models"), part("srv/latest/weights"), part("srv/absolute"), part("opt")]);
    let task = running(&node, &mut plugin, &images, mounts).await;
    assert_eq!(plugin.sh(&task, "cd /part; ls srv/models opt; wc -c < srv/latest/weights").await, {
        "opt:\nnew\n\nsrv/models:\ntwin\nweights\n100"
    });
    assert_eq!(plugin.sh(&task, "stat -c %F /part/srv/absolute").await, "regular file");
    plugin.end(&task).await;
    let missing = "the image has no such file or directory";
    for (path, problem) in [
        ("none/at/all", missing),
        ("srv/new/below", missing),
        // A link leads to a path of the image, not of the node or of the container.
        ("srv/out", missing),
        ("srv/up", missing),
        ("srv/loop", "its links lead in a circle"),
        ("srv/pipe", "neither a directory nor a regular file"),
    ] {
        let mounts = json!([image_mount(&image, "/part", Some(path))]);
        let task = node.task(&images.busybox()).sh(IDLE).option("mount", mounts).build(&mut plugin).await;
        let status = plugin.start(&task).await.err().must("a refusal");
        let text = status.message();
        assert!(text.contains("mount at /part: sub_path") && text.contains(path) && text.contains(problem), "{text}");
        plugin.destroy(task.id(), true).await.ok();
    }
    node.finish(plugin).await;
}

#[tokio::test]
async fn an_image_that_cannot_be_pulled_is_named_in_the_error_and_holds_nothing() {
    let (node, images) = (Node::new(), Images::start().await);
    let mut plugin = node.launch().await;
    let there = images.of_layers("there", [lower()]);
    let mounts = json!([image_mount(&there, "/a", None), image_mount(&images.missing(), "/b", None)]);
    let task = node.task(&images.busybox()).sh(IDLE).option("mount", mounts).build(&mut plugin).await;
    let status = plugin.start(&task).await.err().must("a refusal");
    assert!(status.message().contains(&images.missing()), "{status}");
    assert_eq!(count(&node, "leases"), 0, "the images of a task that did not start are in use");
    plugin.destroy(task.id(), true).await.ok();
    node.finish(plugin).await;
}

/// The images of a running task stay on the node, also if images are removed meanwhile and if the plugin is killed.
/// They are removed after the last task that uses them has ended.
#[tokio::test]
async fn a_mounted_image_stays_as_long_as_a_task_uses_it() {
    let (node, images) = (Node::new(), Images::start().await);
    let options = json!({"gc": {"image_delay": "1s"}});
    let mut plugin = node.launch_with(options.clone()).await;
    let (models, other) = (images.of_layers("models", [lower(), upper()]), images.of_layers("other", [upper()]));
    let mounts = json!([
        image_mount(&models, "/models", None),
        image_mount(&other, "/other", None),
        image_mount(&models, "/again", Some("srv")),
    ]);
    let first = node.task(&images.busybox()).sh(IDLE).option("mount", mounts.clone()).build(&mut plugin).await;
    let handle = plugin.started(&first).await;
    // The node has the only layer of the other image.
    for text in [format!("Downloading image {models}"), format!("Image {other} is on this node")] {
        plugin.streams.event(&text, |event| event.task_id == first.id() && event.message.starts_with(&text)).await;
    }
    let second = node.task(&images.busybox()).sh(IDLE).option("mount", mounts).build(&mut plugin).await;
    let handles = [handle, plugin.started(&second).await];
    // One lease for each image of each task, however often the task mounts it.
    assert_eq!(count(&node, "leases"), 6);
    let look = "cat /models/srv/new /other/srv/new /again/new";
    plugin.process.kill().await;
    let plugin = node.launch_with(options).await;
    for handle in &handles {
        plugin.recover(handle).await.must("RecoverTask");
    }
    run(&node, &["image", "prune"]).await.well();
    let found = run(&node, &["image", "fsck", "--json"]).await.json();
    let of_leases =
        found["findings"].as_array().must("findings").iter().filter(|one| one["path"].to_string().contains("leases"));
    assert_eq!(of_leases.count(), 0, "{found}");
    assert_eq!(count(&node, "images"), 3);
    assert_eq!(plugin.sh(&first, look).await, "newnewnew");
    plugin.end(&first).await;
    assert_eq!(count(&node, "leases"), 3);
    run(&node, &["image", "prune"]).await.well();
    assert_eq!((count(&node, "images"), plugin.sh(&second, look).await.as_str()), (3, "newnewnew"));
    plugin.end(&second).await;
    assert_eq!(count(&node, "leases"), 0);
    let gone = || ["images", "layers"].iter().all(|directory| count(&node, directory) == 0);
    assert!(eventually(seconds(20), gone).await, "images that no task uses stay");
    node.finish(plugin).await;
}

#[tokio::test]
async fn the_commands_show_a_mounted_image_as_used_and_keep_it() {
    let (node, images) = (Node::new(), Images::start().await);
    let mut plugin = node.launch_with(json!({"gc": {"image": false}})).await;
    let models = images.of_layers("models", [lower(), upper()]);
    let task = running(&node, &mut plugin, &images, json!([image_mount(&models, "/models", None)])).await;
    // The number of users of the mounted image, if it is listed. What `df` says of all images: their number, those in
    // use, and whether a removal of the others would free space.
    let shown = async || {
        let listed = run(&node, &["image", "ls", "--json"]).await.well().json();
        let listed = listed.as_array().must("a list").iter().find(|image| image["reference"] == json!(models));
        let users = listed.and_then(|image| image["used_by"].as_array()).map(Vec::len);
        let used = run(&node, &["df", "--json"]).await.well().json()["summary"][0].clone();
        let number = |field: &str| used[field].as_u64().must("a number");
        (users, number("total"), number("active"), number("reclaimable_bytes") > 0)
    };
    assert_eq!(shown().await, (Some(1), 2, 2, false));
    let refused = run(&node, &["image", "rm", &models]).await;
    assert_eq!((refused.code, refused.out.as_str()), (5, ""), "{}", refused.err);
    assert!(refused.err.contains("is in use by") && refused.err.contains(&task.config.alloc_id), "{}", refused.err);
    let kept = run(&node, &["image", "prune"]).await.well().out;
    assert!(kept.contains(&format!("kept {models}: in use by task")), "{kept}");
    assert_eq!(plugin.sh(&task, "cat /models/srv/new").await, "new");
    plugin.end(&task).await;
    assert_eq!(shown().await, (Some(0), 2, 0, true));
    assert_eq!(run(&node, &["image", "rm", &models]).await.well().out, format!("removed {models}"));
    assert_eq!(shown().await, (None, 1, 0, true));
    node.finish(plugin).await;
}

/// The credentials of the task are those of its image's registry: another registry does not get them.
#[tokio::test]
async fn a_mounted_image_is_pulled_with_the_tasks_credentials() {
    let (node, images, others) = (Node::new(), Images::start().await, Images::start().await);
    let auth = || Auth::Basic { user: "ann".into(), password: "s3cret".into() };
    images.require(auth());
    let mut plugin = node.launch().await;
    let auth_block = json!({"username": "ann", "password": "s3cret"});
    let mounts = json!([
        image_mount(&images.of_layers("private", [upper()]), "/private", None),
        image_mount(&others.of_layers("public", [upper()]), "/public", None),
    ]);
    let task = node.task(&images.busybox()).sh(IDLE).option("auth", auth_block.clone()).option("mount", mounts);
    let task = task.build(&mut plugin).await;
    plugin.started(&task).await;
    assert_eq!(plugin.sh(&task, "cat /private/srv/new /public/srv/new").await, "newnew");
    plugin.end(&task).await;
    others.require(auth());
    let mounts = json!([image_mount(&others.of_layers("secret", [lower()]), "/secret", None)]);
    let task = node.task(&images.busybox()).sh(IDLE).option("auth", auth_block).option("mount", mounts);
    let task = task.build(&mut plugin).await;
    let status = plugin.start(&task).await.err().must("a refusal");
    assert!(status.message().contains("without credentials"), "{status}");
    plugin.destroy(task.id(), true).await.ok();
    node.finish(plugin).await;
}

/// Runtimes of the node get the mounted image as the built-in one does. Those that are not installed are left out.
#[tokio::test]
async fn installed_runtimes_mount_images_too() {
    for runtime in ["runc", "crun", "runsc"].into_iter().filter(|name| is_installed(name)) {
        let (node, images) = (Node::new(), Images::start().await);
        let mut plugin = node.launch_with(runtimes::options(runtime)).await;
        let image = images.of_layers("models", [lower(), upper()]);
        let mounts = json!([image_mount(&image, "/models", None), image_mount(&image, "/part", Some("srv"))]);
        let task = node.task(&images.busybox()).sh(IDLE).option("runtime", json!(runtime)).option("mount", mounts);
        let task = task.resources(100, 128, 0).build(&mut plugin).await;
        plugin.started(&task).await;
        let script = "cat /models/srv/new /part/new; echo x 2>/dev/null > /part/x || echo ro";
        assert_eq!(plugin.sh(&task, script).await, "newnewro", "{runtime}");
        plugin.end(&task).await;
        node.finish(plugin).await;
    }
}
