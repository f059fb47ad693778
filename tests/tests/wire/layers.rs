//! The two layer formats of a node: files in a directory, and a file system in a file.

use std::{
    fs,
    path::{Path, PathBuf},
};

use fixtures::{
    busybox::{self, Images},
    image::{Compression, Entry, Image, Layer, archive},
    must::Must,
    random::Random,
    registry::{Action, DockerRegistry, Fault, Registry},
    wait::{eventually, seconds},
};
use kit::{node::Node, plugin::Plugin};
use proto::driver::DriverTaskEvent;
use rustix::mount::{FsOpenFlags, fsopen};
use serde_json::{Value as Json, json};

use crate::operator;

/// The kernel's release, and its first two numbers.
pub fn kernel() -> (String, (u32, u32)) {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split('.').map(|part| part.parse().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    (release, version)
}

/// Whether this node can mount an overlay over a layer image in its data directory. Prints the reason of a skipped
/// test.
#[allow(clippy::print_stdout, reason = "a skipped test says why")]
pub fn mounts_images(node: &Node) -> bool {
    /// `TMPFS_MAGIC` and `OVERLAYFS_SUPER_MAGIC` of linux/magic.h.
    const UNFIT: [u32; 2] = [0x0102_1994, 0x794c_7630];
    let (release, version) = kernel();
    // The kernel loads the module if it exists.
    let known = fsopen("erofs", FsOpenFlags::FSOPEN_CLOEXEC).is_ok();
    let fit = !UNFIT.contains(&(rustix::fs::statfs(node.root()).must("a file system").f_type as u32));
    let works = version >= (6, 15) && known && fit;
    if !works {
        println!("skipped: Linux {release} (EROFS: {known}) mounts no image from {}", node.root().display());
    }
    works
}

/// The numbers of layers as directories and as images.
pub fn forms(node: &Node) -> (usize, usize) {
    let layers = fs::read_dir(node.data_dir().join("images/layers")).must("the layers");
    let layers: Vec<PathBuf> = layers.map(|layer| layer.must("a layer").path()).collect();
    let count = |name: &str| layers.iter().filter(|layer| layer.join(name).exists()).count();
    (count("fs"), count("fs.erofs"))
}

/// The detached mounts that a process holds open.
fn held_mounts(pid: i32) -> usize {
    let names = fs::read_dir(format!("/proc/{pid}/fd")).must("descriptors").map(|name| name.must("a name").path());
    names.filter(|name| fs::read_link(name).is_ok_and(|target| target == Path::new("/"))).count()
}

/// An image with busybox, and a layer that hides one file and adds others.
fn two_layers(images: &Images) -> String {
    let layer = Layer::of([
        Entry::dir("etc"),
        Entry::whiteout("etc/group"),
        Entry::dir("srv").mode(0o2750).owner(7, 8),
        Entry::file("srv/app", "app").owner(7, 8),
        Entry::hard_link("srv/twin", "srv/app").owner(7, 8),
        Entry::file("srv/single", "one name"),
    ]);
    images.with_layers("two", [layer])
}

async fn output(node: &Node, plugin: &mut Plugin, image: &str, command: &str) -> String {
    let task = node.task(image).sh(command).build(plugin).await;
    plugin.started(&task).await;
    assert_eq!(plugin.wait(task.id()).await.code, 0);
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    task.stdout().all(seconds(5)).await
}

/// Programs that stay on one file system, or that compare inodes, see no difference.
#[tokio::test]
async fn layers_mounted_as_images_form_one_file_system() {
    let (node, images) = (Node::new(), Images::start().await);
    if !mounts_images(&node) {
        return;
    }
    let mut plugin = node.launch().await;
    let look = "stat -c %d / /bin /bin/busybox /srv/app /etc/passwd | sort -u | wc -l; find / -xdev -name app; \
                stat -c '%a %u:%g %h' /srv /srv/app; [ /srv/app -ef /srv/twin ] && echo one; ls /etc/group 2>&1 | wc \
                -l";
    let shown = output(&node, &mut plugin, &two_layers(&images), look).await;
    assert_eq!(forms(&node), (0, 2));
    assert_eq!(shown, "1\n/srv/app\n2750 7:8 2\n644 7:8 2\none\n1\n");
    let change = "n=$(stat -c %i /srv/single); echo more >> /srv/single; cat /srv/single; [ $n = $(stat -c %i \
                  /srv/single) ] && echo same; \
                  rm -r /srv && mkdir /srv && ls /srv | wc -l; mv /etc/passwd /etc/old && ls /etc";
    let changed = output(&node, &mut plugin, &two_layers(&images), change).await;
    assert!(changed.starts_with("one namemore\nsame\n0\n") && changed.contains("old"), "{changed}");
    let again = output(&node, &mut plugin, &two_layers(&images), "cat /srv/single").await;
    assert_eq!(again, "one name", "what a container changes is its own");
    node.finish(plugin).await;
}

/// Containers share the page cache of a layer. A removed image uses no space.
#[tokio::test]
async fn containers_share_layer_mounts_and_the_image_removal_unmounts_them() {
    let (node, images) = (Node::new(), Images::start().await);
    if !mounts_images(&node) {
        return;
    }
    let mut plugin = node.launch_with(json!({"gc": {"image_delay": "1s"}})).await;
    let pid = plugin.process.pid();
    let name = two_layers(&images);
    let none = held_mounts(pid);
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let task = node.task(&name).sh("sleep 1000").build(&mut plugin).await;
        plugin.started(&task).await;
        // A new layer is mounted a second time for a moment, when it has reached the disk.
        assert!(eventually(seconds(20), || held_mounts(pid) - none == 2).await, "{}", held_mounts(pid));
        tasks.push(task);
    }
    for task in &tasks {
        plugin.destroy(task.id(), true).await.must("DestroyTask");
    }
    assert!(eventually(seconds(20), || held_mounts(pid) == none).await, "{}", held_mounts(pid));
    assert_eq!(forms(&node), (0, 0));
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_new_plugin_makes_its_own_layer_mounts() {
    let (node, images) = (Node::new(), Images::start().await);
    if !mounts_images(&node) {
        return;
    }
    let mut plugin = node.launch().await;
    let name = two_layers(&images);
    let task = node.task(&name).sh("while [ ! -e /go ]; do sleep 0.1; done; cat /srv/app").build(&mut plugin).await;
    let handle = plugin.started(&task).await;
    plugin.process.kill().await;
    let mut plugin = node.launch().await;
    plugin.recover(&handle).await.must("RecoverTask");
    assert_eq!(output(&node, &mut plugin, &name, "cat /srv/app").await, "app");
    let done = plugin.exec(task.id(), &["touch", "/go"], seconds(10)).await.must("ExecTask");
    assert_eq!(done.result.must("a result").exit_code, 0);
    assert_eq!(plugin.wait(task.id()).await.code, 0);
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

#[tokio::test]
async fn the_operator_can_choose_layer_directories() {
    let (node, images) = (Node::new(), Images::start().await);
    let directories = json!({"layer_format": "directory"});
    let mut plugin = node.launch_with(directories.clone()).await;
    assert_eq!(output(&node, &mut plugin, &two_layers(&images), "cat /srv/app").await, "app");
    assert_eq!(forms(&node), (2, 0));
    plugin.process.kill().await;
    // Existing directories stay, and new layers become images. One container uses both.
    let mut plugin = node.launch().await;
    let third = images.with_layers("three", [Layer::of([Entry::file("third", "3")])]);
    assert_eq!(output(&node, &mut plugin, &third, "cat /third; ls /bin/busybox").await, "3/bin/busybox\n");
    assert_eq!(forms(&node), if mounts_images(&node) { (2, 1) } else { (3, 0) });
    plugin.process.kill().await;
    // Another kernel may not be able to mount the image.
    let mut plugin = node.launch_with(directories).await;
    assert_eq!(output(&node, &mut plugin, &third, "cat /third").await, "3");
    assert_eq!(forms(&node), (3, 0));
    node.finish(plugin).await;
}

/// The digest, in hexadecimal digits, and the size of the largest EROFS image in an OCI layout. The archives of the
/// original can be larger.
pub fn largest_native_layer(layout: &Path) -> (String, usize) {
    const MAGIC: [u8; 4] = 0xe0f5_e1e2_u32.to_le_bytes();
    let blobs = fs::read_dir(layout.join("blobs/sha256")).must("blobs").map(|blob| blob.must("a blob"));
    let images = blobs.filter_map(|blob| {
        let bytes = fs::read(blob.path()).must("a blob");
        let is_image = bytes.get(1024..1028) == Some(&MAGIC);
        is_image.then(|| (blob.file_name().to_string_lossy().into_owned(), bytes.len()))
    });
    images.max_by_key(|(_, size)| *size).must("a native layer")
}

/// A registry serves zeros for a native layer.
#[tokio::test]
async fn a_damaged_native_image_is_replaced_by_its_original() {
    let node = Node::new();
    if !mounts_images(&node) {
        return;
    }
    let (layout, registry) = (node.root().join("layout.tar"), Registry::start());
    let built = busybox::image(Compression::Gzip);
    fs::write(&layout, archive(built.layout(json!({"org.opencontainers.image.ref.name": "1"})))).must("a layout");
    let name = registry.reference("team/native:1");
    let paths = [layout.display().to_string(), node.root().join("native").display().to_string()];
    operator::run(&node, &["image", "convert", &paths[0], &paths[1]]).await.well();
    operator::run(&node, &["image", "push", &paths[1], &name]).await.well();
    let (digest, size) = largest_native_layer(&node.root().join("native"));
    registry.fault(Fault::on(&digest, Action::Body(vec![0; size])));
    let mut plugin = node.launch().await;
    let task = node.task(&name).sh("echo ran").build(&mut plugin).await;
    plugin.started(&task).await;
    assert_eq!(plugin.wait(task.id()).await.code, 0);
    let refused = |event: &DriverTaskEvent| event.task_id == task.id() && event.message.contains("native image");
    let event = plugin.streams.event("the refusal", refused).await;
    assert!(event.message.contains("is refused, its original is used: layer sha256:"), "{event:?}");
    assert!(event.message.contains(&digest), "{event:?}");
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    assert_eq!(task.stdout().all(seconds(5)).await, "ran\n");
    let shown = operator::run(&node, &["image", "inspect", &name, "--json"]).await.well().json();
    assert_eq!(shown[0]["digest"], json!(built.digest()));
    // An operator who pulls it reads the reason too.
    let pulled = operator::run(&node, &["image", "pull", &name]).await.well();
    assert!(pulled.out.contains(&built.digest()), "{}", pulled.out);
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_native_image_runs_like_its_original() {
    let node = Node::new();
    let (source, target) = (node.root().join("layout.tar"), node.root().join("native"));
    let built = busybox::image(Compression::Gzip);
    fs::write(&source, archive(built.layout(json!({"org.opencontainers.image.ref.name": "1"})))).must("a layout");
    let paths = [source.display().to_string(), target.display().to_string()];
    let convert = ["image", "convert", &paths[0], &paths[1], "--json"];
    let converted = operator::run(&node, &convert).await.well().json();
    let again = operator::run(&node, &convert).await;
    assert!(again.code == 1 && again.err.contains("native"), "the directory exists: {}", again.err);
    let registry = DockerRegistry::start().filter(|_| mounts_images(&node));
    let Some(registry) = registry else { return node.finish_without_plugin().await };
    let (name, copy) = (format!("{}/team/native:1", registry.host()), format!("{}/team/copy:1", registry.host()));
    let original = registry.push("team/original:1", &built);
    // The same from a registry to itself: it has the original layers.
    let remote = [format!("docker://{original}"), format!("docker://{name}")];
    let published = operator::run(&node, &["image", "convert", &remote[0], &remote[1], "--json"]).await.well().json();
    assert_eq!(published["index"], converted["index"]);
    assert_eq!(published["pushed"]["mounted"], json!(built.blobs.len()));
    let pushed = operator::run(&node, &["image", "push", &paths[1], &copy, "--json"]).await.well().json();
    assert_eq!(pushed["digest"], converted["index"]);
    let mut plugin = node.launch().await;
    // The blocks of a directory's files, which `ls` adds up, are fewer in an image that is compressed.
    let command = "ls -lanR /bin | grep -v ^total; cat /bin/* | md5sum";
    let native = output(&node, &mut plugin, &name, command).await;
    assert_eq!(forms(&node), (0, built.diff_ids.len()));
    let shown = operator::run(&node, &["image", "inspect", &name, "--json"]).await.well().json();
    assert_eq!(shown[0]["digest"], converted["images"][0]["manifest"]);
    assert_eq!(output(&node, &mut plugin, &original, command).await, native);
    assert!(native.contains("busybox"), "{native}");
    node.finish(plugin).await;
}

/// The steps are those of the original's build. The layers are the files that the node has.
#[tokio::test]
async fn history_and_tree_of_a_native_image_show_its_own_layers() {
    let node = Node::new();
    if !mounts_images(&node) {
        return;
    }
    let registry = Registry::start();
    let built = Image::new()
        .layer(Layer::of([Entry::file("base", Random::new(1).bytes(300_000))]))
        .layer(Layer::of([Entry::file("app", Random::new(2).bytes(20_000))]))
        .history(json!([
            {"created": "2026-01-01T00:00:00Z", "created_by": "ADD base /"},
            {"created": "2026-01-02T00:00:00Z", "created_by": "CMD [\"/app\"]", "empty_layer": true},
            {"created": "2026-01-03T00:00:00Z", "created_by": "COPY app /app", "comment": "the last"},
        ]))
        .build();
    let layout = node.root().join("layout.tar");
    fs::write(&layout, archive(built.layout(json!({"org.opencontainers.image.ref.name": "1"})))).must("a layout");
    let paths = [layout.display().to_string(), node.root().join("native").display().to_string()];
    operator::run(&node, &["image", "convert", &paths[0], &paths[1]]).await.well();
    let (name, original) = (registry.reference("team/native:1"), registry.push("team/original:1", &built));
    operator::run(&node, &["image", "push", &paths[1], &name]).await.well();
    let plugin = node.launch().await;
    operator::run(&node, &["image", "pull", &name]).await.well();
    operator::run(&node, &["image", "pull", &original]).await.well();
    assert_eq!(forms(&node), (0, 4), "two native layers, and those of the original");

    let record = operator::run(&node, &["image", "inspect", &name, "--json"]).await.well().json();
    let steps = operator::run(&node, &["image", "history", &name, "--json"]).await.well().json();
    let of_original = operator::run(&node, &["image", "history", &original, "--json"]).await.well().json();
    let column = |steps: &Json, name: &str| -> Vec<Json> {
        steps.as_array().must("steps").iter().map(|step| step[name].clone()).collect()
    };
    for name in ["created", "created_by", "comment"] {
        assert_eq!(column(&steps, name), column(&of_original, name), "{steps}");
    }
    let layers = column(&steps, "layer");
    assert!(layers[1].is_null() && column(&steps, "bytes")[1].is_null(), "no layer: {steps}");
    let files: Vec<Json> = [0, 2].map(|step| layers[step].clone()).into();
    assert_eq!(column(&record[0]["layers"], "diff_id"), files, "{record}");
    assert!(files.iter().all(|file| !built.diff_ids.iter().any(|diff_id| file == diff_id)), "{steps}");
    for (step, least) in [(0, 300_000), (2, 20_000)] {
        assert!(steps[step]["bytes"].as_u64() >= Some(least), "{steps}");
    }

    // They share no layer.
    let tree = operator::run(&node, &["image", "tree", "--json"]).await.well().json();
    let branch = |layers: &[Json], name: &str| {
        [json!([layers[0], null, []]), json!([layers[1], layers[0], [name]])].map(|expected| {
            let row = |row: &Json| json!([row["layer"], row["parent"], row["images"]]) == expected;
            tree.as_array().must("rows").iter().any(row)
        })
    };
    let unpacked: Vec<Json> = built.diff_ids.iter().map(|diff_id| json!(diff_id)).collect();
    assert_eq!((branch(&files, &name), branch(&unpacked, &original)), ([true; 2], [true; 2]), "{tree:#}");
    assert_eq!(tree.as_array().map(Vec::len), Some(4), "{tree:#}");
    node.finish(plugin).await;
}
