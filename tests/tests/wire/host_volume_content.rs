//! Host volumes with content: that of an image.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, Metadata, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::Child,
};

use fixtures::{
    busybox::Images,
    image::{self, Entry, Layer},
    must::Must,
    registry::Auth,
};
use kit::{node::Node, plugin::Plugin};
use rustix::{
    fs::FileType,
    mount::{UnmountFlags, unmount},
};
use serde_json::{Value as Json, json};

use crate::{
    host_volume_copies::NodeDisk,
    host_volumes::{Client, ID, MEBIBYTE, POINT, Said, Spec, kill_at_any_moment, kill_at_each_failpoint},
    random_images::random_image,
};

pub const OTHER: &str = "4d9f3c3e-0f0e-4f5c-9a55-4a3c0e6b1d02";

/// A layer with everything that an image can describe.
pub fn lower() -> Layer {
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    Layer::of([
        Entry::dir("srv").mode(0o1750).owner(7, 8),
        Entry::dir("srv/models").mtime(1_500_000_000, 123_456_789),
        Entry::file("srv/models/weights", vec![b'w'; 300_000]).mode(0o640).owner(1000, 1001).mtime(1_600_000_001, 5),
        Entry::hard_link("srv/models/twin", "srv/models/weights"),
        Entry::file("srv/models/empty", "").mode(0o400).xattr("user.note", "of the image"),
        Entry::file("srv/hidden", "hidden"),
        Entry::symlink("srv/latest", "/srv/models").owner(3, 4).mtime(1_400_000_000, 0),
        Entry::file("srv/tool", "#!/bin/sh\n").mode(0o6755).owner(1000, 1001),
        Entry::file("srv/ping", "x").mode(0o755).xattr("security.capability", capability),
        Entry::fifo("srv/pipe").mode(0o620),
        Entry::char_device("srv/null", 1, 3).mode(0o666),
        Entry::block_device("srv/disk", 7, 1).mode(0o660).owner(0, 6),
        Entry::dir("opt"),
        Entry::file("opt/old", "old"),
    ])
}

/// A layer that hides and replaces files of the lower one.
pub fn upper() -> Layer {
    Layer::of([
        Entry::dir("srv").mode(0o755).owner(9, 9),
        Entry::whiteout("srv/hidden"),
        Entry::file("srv/new", "new"),
        Entry::dir("opt"),
        Entry::opaque("opt"),
        Entry::file("opt/new", "new"),
    ])
}

/// One line per path: type, mode, owner, time, the first of its names, content and all extended attributes.
pub fn describe(root: &Path) -> BTreeMap<String, String> {
    describe_without(root, &BTreeSet::new())
}

/// The same without these paths and what is below them.
fn describe_without(root: &Path, left_out: &BTreeSet<PathBuf>) -> BTreeMap<String, String> {
    let (mut found, mut waiting) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(path) = waiting.pop() {
        if path.strip_prefix(root).is_ok_and(|path| left_out.contains(path)) {
            continue;
        }
        let meta = fs::symlink_metadata(&path).must("a file");
        if meta.is_dir() {
            waiting.extend(fs::read_dir(&path).must("a directory").map(|entry| entry.must("an entry").path()));
        }
        found.insert(path.strip_prefix(root).must("below the root").display().to_string(), (path, meta));
    }
    let mut first_names = BTreeMap::new();
    for (name, (_, meta)) in &found {
        first_names.entry((meta.dev(), meta.ino())).or_insert(name);
    }
    let line = |(path, meta): &(PathBuf, Metadata)| {
        let content = match FileType::from_raw_mode(meta.mode()) {
            FileType::Directory => String::new(),
            FileType::RegularFile => image::digest(&fs::read(path).must("a file")),
            FileType::Symlink => fs::read_link(path).must("a link").display().to_string(),
            _ => format!("{:x}", meta.rdev()),
        };
        let (owner, time) = (format!("{}:{}", meta.uid(), meta.gid()), (meta.mtime(), meta.mtime_nsec()));
        let first = first_names[&(meta.dev(), meta.ino())];
        format!("{:o} {owner} {time:?} {first} {content} {:?}", meta.mode(), xattrs(path))
    };
    found.iter().map(|(name, file)| (name.clone(), line(file))).collect()
}

/// The extended attributes of a file. Labels belong to the machine.
fn xattrs(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut names = [0u8; 4096];
    let length = rustix::fs::llistxattr(path, &mut names[..]).unwrap_or_default();
    let names =
        names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty() && *name != b"security.selinux");
    let value = |name: &[u8]| {
        let mut value = [0u8; 4096];
        let length = rustix::fs::lgetxattr(path, name, &mut value[..]).must("an attribute");
        value[..length].to_vec()
    };
    names.map(|name| (String::from_utf8_lossy(name).into_owned(), value(name))).collect()
}

/// A node with a driver's plugin, its client, and images.
pub async fn set_up(options: Json, client: Client) -> (Node, Plugin, Client, Images) {
    let (node, images) = (Node::new(), Images::start().await);
    let mut options = options;
    // The test looks at the ids on disk, and a user namespace shows others to the host.
    options["userns"] = json!({"mode": "off"});
    let plugin = node.launch_with(options).await;
    let client = client.on(&node);
    (node, plugin, client, images)
}

/// Each form of a volume has what a container sees of the image, in each form in which a node stores layers.
#[tokio::test]
async fn a_volume_of_an_image_has_the_files_that_a_container_of_it_sees() {
    for options in [json!({}), json!({"layer_format": "directory"}), json!({"rootfs": "copy"})] {
        let (node, mut plugin, client, images) = set_up(options.clone(), Client::new()).await;
        let mut names = vec![images.of_layers("several", [lower(), upper()]), images.of_layers("one", [lower()])];
        for seed in 0..4 {
            names.push(images.with(|registry| registry.push(&format!("random-{seed}:1"), &random_image(seed))));
        }
        for name in names {
            let mount = json!([{"type": "image", "source": name, "target": "/image"}]);
            let task = node.task(&images.busybox()).sh("while :; do sleep 1000; done").option("mount", mount);
            let task = task.build(&mut plugin).await;
            plugin.started(&task).await;
            let root = PathBuf::from(format!("/proc/{}/root/image", plugin.init_pid(&task)));
            let seen = describe(&root);
            assert!(seen.len() > 8, "{seen:?}");
            for capacity in [0, 32 * MEBIBYTE] {
                let spec = Spec { parameters: json!({"image": name}), ..Spec::limited(0, capacity) };
                client.create(&spec).well();
                assert_eq!(describe(&client.path(ID)), seen, "{options} {name} {capacity}");
                client.delete(&spec).well();
            }
            if seen.contains_key("srv/new") {
                let spec = Spec::directory(json!({"image": name, "path": "/srv/../srv/latest/.."}));
                client.create(&spec).well();
                assert_eq!(describe(&client.path(ID)), describe(&root.join("srv")), "{options}");
                client.delete(&spec).well();
            }
            plugin.end(&task).await;
        }
        client.assert_empty();
        node.finish(plugin).await;
    }
}

/// The places where the driver mounts something into a task, if the image has them: then it makes none itself.
fn mount_points() -> Layer {
    let directories = ["alloc", "dev", "local", "proc", "secrets", "sys"].map(Entry::dir);
    let files = ["etc/hostname", "etc/hosts", "etc/resolv.conf"].map(|name| Entry::file(name, ""));
    let root = Entry::dir("./").mode(0o751).owner(3, 4).mtime(1_450_000_000, 7);
    Layer::of([root, Entry::dir("etc")].into_iter().chain(directories).chain(files))
}

/// The mount points of a process below its root, as paths below the root.
fn mounts_of(pid: i32) -> BTreeSet<PathBuf> {
    let table = fs::read_to_string(format!("/proc/{pid}/mountinfo")).must("the mounts");
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)?.strip_prefix('/'));
    points.filter(|point| !point.is_empty()).map(PathBuf::from).collect()
}

/// The root of a container is compared entry by entry, except for what the driver mounts there. The root directory
/// itself has the time at which its writable layer was made, as with docker.
#[tokio::test]
async fn a_volume_of_an_image_has_the_files_of_the_root_of_its_container() {
    for options in [json!({}), json!({"layer_format": "directory"}), json!({"rootfs": "copy"})] {
        let (node, mut plugin, client, images) = set_up(options.clone(), Client::new()).await;
        let name = images.with_layers("root", [mount_points(), lower(), upper()]);
        let task = node.task(&name).sh("while :; do sleep 1000; done").build(&mut plugin).await;
        plugin.started(&task).await;
        let pid = plugin.init_pid(&task);
        let mounted = mounts_of(pid);
        assert!(["proc", "dev", "local"].iter().all(|name| mounted.contains(Path::new(name))), "{mounted:?}");
        let listed = |root: &Path| {
            let (mut files, meta) = (describe_without(root, &mounted), fs::metadata(root).must("the root"));
            files.insert(String::new(), format!("{:o} {}:{}", meta.mode(), meta.uid(), meta.gid()));
            files
        };
        // `root` alone is a link.
        let seen = listed(Path::new(&format!("/proc/{pid}/root/")));
        assert!(seen.contains_key("bin/busybox") && seen.contains_key("srv/new"), "{seen:?}");
        assert!(seen["srv/models"].contains("(1500000000, 123456789)") && seen[""] == "40751 3:4", "{seen:?}");
        for capacity in [0, 32 * MEBIBYTE] {
            let spec = Spec { parameters: json!({"image": name}), ..Spec::limited(0, capacity) };
            client.create(&spec).well();
            assert_eq!(listed(&client.path(ID)), seen, "{options} {capacity}");
            client.delete(&spec).well();
        }
        plugin.end(&task).await;
        client.assert_empty();
        node.finish(plugin).await;
    }
}

/// Form, content, owner, mode and access, on the file systems that a node may have. Copies have tests of their own.
#[tokio::test]
async fn every_combination_of_parameters_makes_a_volume_on_each_file_system() {
    for disk in ["ext4", "xfs", "btrfs"].into_iter().filter_map(NodeDisk::make) {
        let (node, plugin, client, images) = set_up(json!({}), disk.client()).await;
        let name = images.of_layers("several", [lower(), upper()]);
        let contents = [json!({}), json!({"image": name}), json!({"image": name, "path": "srv"})];
        for (max, kind) in [(0, None), (32, None), (32, Some("ext4")), (320, Some("xfs"))] {
            for content in &contents {
                for read_only in ["false", "true"] {
                    let mut parameters = content.clone();
                    parameters["read_only"] = json!(read_only);
                    parameters["uid"] = json!("7");
                    parameters["mode"] = json!("0750");
                    if let Some(kind) = kind {
                        parameters["fs"] = json!(kind);
                    }
                    let spec = Spec { parameters, ..Spec::limited(0, max * MEBIBYTE) };
                    let context = format!("{} {max} {}", disk.kind, spec.parameters);
                    let made = client.create(&spec).well();
                    let bytes = made["bytes"].as_u64().must("bytes");
                    assert!(bytes <= max * MEBIBYTE && (bytes > 0) == (max > 0), "{context}: {bytes}");
                    let path = client.path(ID);
                    let root = fs::metadata(&path).must("the volume");
                    assert_eq!((root.mode() & 0o7777, root.uid()), (0o750, 7), "{context}");
                    let file = match (content.get("image"), content.get("path")) {
                        (None, _) => None,
                        (Some(_), None) => Some("srv/models/weights"),
                        (Some(_), Some(_)) => Some("models/weights"),
                    };
                    if let Some(file) = file {
                        let found = fs::metadata(path.join(file)).must("a file of the image");
                        assert_eq!((found.len(), found.nlink()), (300_000, 2), "{context}");
                    } else {
                        assert_eq!(fs::read_dir(&path).must("listed").count(), 0, "{context}");
                    }
                    let is_mounted = max > 0 || read_only == "true";
                    assert_eq!(client.mounts(ID).len(), usize::from(is_mounted), "{context}");
                    assert_eq!(fs::write(path.join("written"), "").is_ok(), read_only == "false", "{context}");
                    assert_eq!(client.create(&spec).well(), made, "{context}");
                    client.delete(&spec).well();
                    client.assert_empty();
                }
            }
        }
        node.finish(plugin).await;
    }
}

#[tokio::test]
async fn the_content_stays_and_does_not_follow_the_tag() {
    let (node, plugin, client, images) = set_up(json!({}), Client::new()).await;
    let name = images.of_layers("models", [lower(), upper()]);
    let parameters = json!({"image": name, "path": "srv", "uid": "5", "mode": "0700"});
    for capacity in [0, 16 * MEBIBYTE] {
        let spec = Spec { parameters: parameters.clone(), ..Spec::limited(0, capacity) };
        let made = client.create(&spec).well();
        let root = fs::metadata(client.path(ID)).must("the volume");
        assert_eq!((root.mode() & 0o7777, root.uid(), root.gid()), (0o700, 5, 9), "parameters win over the image");
        fs::write(client.path(ID).join("new"), "changed").must("written");
        fs::remove_file(client.path(ID).join("tool")).must("removed");
        // The tag moves. Then the agent repeats the call after a reboot, without a registry.
        assert_eq!(images.of_layers("models", [lower()]), name);
        let before = images.requests().len();
        unmount(client.path(ID), UnmountFlags::empty()).ok();
        assert_eq!(client.create(&spec).well(), made);
        assert_eq!(images.requests().len(), before);
        assert_eq!(fs::read_to_string(client.path(ID).join("new")).must("the file"), "changed");
        assert!(!client.path(ID).join("tool").exists());
        for other in [json!({"image": name}), json!({"image": images.busybox()})] {
            let refusal = client.create(&Spec { parameters: other, ..spec.clone() }).refusal();
            assert!(refusal.contains("the volume was filled from \"srv\" of image"), "{refusal}");
        }
        client.delete(&spec).well();
        images.of_layers("models", [lower(), upper()]);
    }
    let leases = node.data_dir().join("images/leases");
    assert_eq!(fs::read_dir(&leases).must("the leases").count(), 0);
    client.assert_empty();
    node.finish(plugin).await;
}

#[tokio::test]
async fn the_file_beside_the_plugin_names_the_store() {
    let (node, images, client) = (Node::new(), Images::start().await, Client::new());
    let name = images.of_layers("models", [lower()]);
    let block = format!("data_dir = {:?}\nstate_dir = {:?}", node.data_dir(), node.state_dir());
    let config = format!("plugin \"oci-rs\" {{\n config {{\n{block}\n}}\n}}\n");
    fs::write(client.plugins().join("oci-rs-volume.hcl"), config).must("written");
    let spec = Spec::directory(json!({"image": name}));
    client.create(&spec).well();
    assert!(client.path(ID).join("srv/models/weights").exists());
    assert!(node.data_dir().join("images").is_dir());
    client.delete(&spec).well();
    fs::write(client.plugins().join("oci-rs-volume.hcl"), "plugin \"oci-rs\" {").must("written");
    let refusal = client.create(&spec).refusal();
    assert!(refusal.contains("oci-rs-volume.hcl"), "{refusal}");
    client.assert_empty();
}

#[tokio::test]
async fn content_that_cannot_be_had_is_named_and_nothing_is_left() {
    let (node, plugin, client, images) = set_up(json!({}), Client::new()).await;
    let name = images.of_layers("models", [lower(), upper()]);
    let large = images.of_layers("large", [Layer::of([Entry::file("large", vec![b'x'; 8 << 20])])]);
    for (max, parameters, parts) in [
        (0, json!({"image": images.missing()}), &["parameter image: pulling", "not found"][..]),
        (0, json!({"image": images.corrupt()}), &["parameter image: pulling"]),
        (0, json!({"image": name, "path": "/no/where"}), &["image, path", "\"/no/where\"", "No such file"]),
        (0, json!({"image": name, "path": "srv/new"}), &["image, path", "\"srv/new\"", "Not a directory"]),
        (8 * MEBIBYTE, json!({"image": large}), &["parameter image", "No space left", "larger capacity_max"]),
    ] {
        let refusal = client.create(&Spec { parameters, ..Spec::limited(0, max) }).refusal();
        assert!(parts.iter().all(|part| refusal.contains(part)), "{refusal}");
        client.assert_empty();
    }
    node.finish(plugin).await;
}

/// An image may have set-user-id programs and devices. A directory of the node's file system has no flags against them.
#[tokio::test]
async fn content_in_a_directory_that_users_of_the_node_reach_is_refused() {
    let (node, plugin, client, images) = set_up(json!({}), Client::new()).await;
    let name = images.of_layers("models", [lower()]);
    let directory = Spec::directory(json!({"image": name, "uid": "1000", "mode": "0700"}));
    let limited = Spec { parameters: directory.parameters.clone(), ..Spec::limited(0, 16 * MEBIBYTE) };
    let volumes = client.volumes();
    let above = volumes.parent().must("a directory").to_owned();
    fs::create_dir(&volumes).must("a directory");
    let set_mode = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).must("a mode");
    for (of_volumes, of_above, is_reached) in
        [(0o711, 0o755, true), (0o750, 0o755, true), (0o755, 0o700, false), (0o700, 0o755, false)]
    {
        set_mode(&volumes, of_volumes);
        set_mode(&above, of_above);
        let said = client.create(&directory);
        if is_reached {
            let refusal = said.refusal();
            let remedy = format!("chmod 0700 {}, or give capacity_max or read_only", volumes.display());
            assert!(refusal.contains("parameter image: users of the node") && refusal.contains(&remedy), "{refusal}");
            client.assert_empty();
            // Without an image there is nothing that root would own.
            client.create(&Spec::directory(Json::Null)).well();
        } else {
            said.well();
        }
        client.delete(&directory).well();
        client.create(&limited).well();
        let [mounted] = &client.mounts(ID)[..] else { panic!("{:?}", client.mounts(ID)) };
        assert!(mounted.contains("nosuid") && mounted.contains("nodev"), "{mounted}");
        client.delete(&limited).well();
    }
    client.assert_empty();
    node.finish(plugin).await;
}

/// What the operator's configuration refuses to tasks, it refuses to volumes.
#[tokio::test]
async fn the_rules_of_the_operator_for_images_hold_for_volumes() {
    let (node, plugin, client, images) = set_up(json!({"image_limits": {"layers": 1}}), Client::new()).await;
    let one = Spec::directory(json!({"image": images.of_layers("one", [lower()])}));
    client.create(&one).well();
    client.delete(&one).well();
    let two = Spec::directory(json!({"image": images.of_layers("two", [lower(), upper()])}));
    let refusal = client.create(&two).refusal();
    assert!(refusal.contains("parameter image: pulling") && refusal.contains("layers"), "{refusal}");
    client.assert_empty();
    node.finish(plugin).await;

    // An image that was pulled with credentials is not given to callers without them.
    let (node, mut plugin, client, images) = set_up(json!({}), Client::new()).await;
    let name = images.busybox();
    images.require(Auth::Basic { user: "user".to_owned(), password: "password".to_owned() });
    let auth = json!({"username": "user", "password": "password"});
    let task = node.task(&name).sh("true").option("auth", auth).build(&mut plugin).await;
    plugin.start(&task).await.must("StartTask");
    plugin.wait(task.id()).await;
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    let spec = Spec::directory(json!({"image": name}));
    let refusal = client.create(&spec).refusal();
    assert!(refusal.contains("verify_access"), "{refusal}");
    client.assert_empty();
    plugin.process.kill().await;
    let plugin = node.launch_with(json!({"verify_access": false})).await;
    client.create(&spec).well();
    client.delete(&spec).well();
    client.assert_empty();
    node.finish(plugin).await;

    // Without a configuration there are no rules, and so no image.
    let (node, client) = (Node::new(), Client::new());
    let refusal = client.on(&node).create(&Spec::directory(json!({"image": name}))).refusal();
    assert!(refusal.contains("the operator's configuration is not found"), "{refusal}");
}

#[tokio::test]
async fn concurrent_calls_fill_each_volume_once() {
    let (node, plugin, client, images) = set_up(json!({}), Client::new()).await;
    let name = images.of_layers("models", [lower(), upper()]);
    let specs = [ID, OTHER, ID, OTHER].map(|id| Spec { id, ..Spec::directory(json!({"image": name})) });
    let calls: Vec<Child> = specs.iter().map(|spec| client.command("create", spec).spawn().must("a call")).collect();
    for call in calls {
        Said(call.wait_with_output().must("an end")).well();
    }
    assert_eq!(describe(&client.path(ID)), describe(&client.path(OTHER)));
    specs.iter().for_each(|spec| drop(client.delete(spec).well()));
    client.assert_empty();
    node.finish(plugin).await;
}

/// `make volume-kills` kills more often.
#[tokio::test]
async fn a_killed_filling_is_mended_by_the_next_call_and_swept_by_that_of_another_volume() {
    let (node, plugin, client, images) = set_up(json!({}), Client::in_memory()).await;
    let name = images.of_layers("models", [lower(), upper()]);
    let limited = Spec { parameters: json!({"image": name}), ..Spec::limited(0, 16 * MEBIBYTE) };
    let directory = Spec::directory(json!({"image": name, "path": "/srv"}));
    let specs = [limited.clone(), directory];
    kill_at_each_failpoint(&client, &specs);
    kill_at_any_moment(&client, &specs);
    let killed = client.command("create", &limited).env(POINT, "volume-before-copy").output().must("a call");
    assert_eq!(killed.status.code(), None, "{killed:?}");
    assert_eq!(client.own(), [ID]);
    let other = Spec { id: OTHER, ..Spec::directory(Json::Null) };
    client.create(&other).well();
    assert_eq!(client.own(), [OTHER], "no later call has the id of the first volume");
    client.delete(&other).well();
    // The leases of killed calls have no effect. The next call that uses an image removes them.
    client.create(&limited).well();
    client.delete(&limited).well();
    assert_eq!(fs::read_dir(node.data_dir().join("images/leases")).must("the leases").count(), 0);
    client.assert_empty();
    node.finish(plugin).await;
}
