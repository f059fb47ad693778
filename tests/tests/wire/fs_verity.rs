//! Layers are protected by fs-verity. The tests need a kernel that has it, such as Linux 6.18 in the virtual machine.

use std::{
    fs::{self, File},
    os::{fd::AsFd, unix::fs::FileExt},
    path::{Path, PathBuf},
};

use fixtures::{
    busybox::Images,
    image::{Entry, Layer},
    must::Must,
    random::Random,
    wait::{eventually, seconds},
};
use kit::{node::Node, plugin::Plugin, task::Task};
use proto::driver::DriverTaskEvent;
use rustix::{
    fs::{Advice, AtFlags, CWD, SeekFrom, StatxAttributes, StatxFlags, fadvise, seek, statx, syncfs},
    io::Errno,
};
use serde_json::{Value as Json, json};
use tempfile::TempDir;

use crate::{host_volume_copies::NodeDisk, layers::mounts_images, lazy_start::Scene, operator::run};

/// Bytes of the file in the image.
const BYTES: usize = 256 << 10;
/// Bytes of the sequence that the file repeats. No other file on the disk has it.
const SEQUENCE: usize = 64;

/// A disk with fs-verity for the data of a node. Prints the reason of a skipped test.
#[allow(clippy::print_stdout, reason = "a skipped test says why")]
fn disk(node: &Node) -> Option<NodeDisk> {
    let has_verity = Path::new("/sys/fs/ext4/features/verity").exists();
    if !has_verity {
        println!("skipped: this kernel has no fs-verity");
    }
    let possible = mounts_images(node) && has_verity;
    let disk = possible.then(|| NodeDisk::with("ext4", &["-O", "verity"], "loop")).flatten();
    // The virtual machine with this variable must be able to test it.
    assert!(disk.is_some() || std::env::var_os("OCI_RS_FS_VERITY").is_none(), "OCI_RS_FS_VERITY=1: see above");
    disk
}

/// Whether the kernel verifies the blocks of a file.
fn is_protected(file: &Path) -> bool {
    let found = statx(CWD, file, AtFlags::empty(), StatxFlags::empty());
    found.is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::VERITY))
}

fn on(disk: &NodeDisk, options: &Json) -> Json {
    let mut config = json!({"data_dir": data(disk), "fs_verity": true});
    if let (Some(config), Some(options)) = (config.as_object_mut(), options.as_object()) {
        config.extend(options.clone());
    }
    config
}

fn data(disk: &NodeDisk) -> PathBuf {
    disk.path().join("oci-rs")
}

/// The images of the layers on a disk.
fn images(disk: &NodeDisk) -> Vec<PathBuf> {
    let layers = fs::read_dir(data(disk).join("images/layers")).into_iter().flatten().flatten();
    layers.map(|layer| layer.path().join("fs.erofs")).collect()
}

/// Waits until all layers on a disk are protected, and returns their images.
async fn protected(disk: &NodeDisk, count: usize) -> Vec<PathBuf> {
    let all = || {
        let images = images(disk);
        images.len() == count && images.iter().all(|image| is_protected(image))
    };
    assert!(eventually(seconds(60), all).await, "{:?}", images(disk));
    images(disk)
}

/// Changes one byte of the file of the image, on the disk below the file system.
fn flip(disk: &NodeDisk, sequence: &[u8]) {
    syncfs(File::open(disk.path()).must("the disk")).must("synced");
    let device = File::options().read(true).write(true).open(disk.file()).must("the file of the disk");
    let end = device.metadata().must("its size").len();
    let mut offset = 0;
    while offset < end {
        offset = match seek(device.as_fd(), SeekFrom::Data(offset)) {
            Ok(data) => data,
            Err(Errno::NXIO) => break,
            Err(error) => panic!("{error}"),
        };
        let mut block = vec![0; (end - offset).min(64 << 10) as usize];
        device.read_exact_at(&mut block, offset).must("read");
        if let Some(found) = block.windows(sequence.len()).position(|window| window == sequence) {
            let at = offset + found as u64;
            device.write_all_at(&[sequence[0] ^ 1], at).must("written");
            return;
        }
        offset += block.len() as u64;
    }
    panic!("the file is not on the disk");
}

/// The kernel reads these files from disk again.
fn forget(files: &[PathBuf]) {
    for file in files {
        fadvise(File::open(file).must("a layer"), 0, None, Advice::DontNeed).must("forgotten");
    }
}

async fn output(plugin: &mut Plugin, task: &Task) -> String {
    plugin.wait(task.id()).await;
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    task.stdout().all(seconds(5)).await
}

#[tokio::test]
async fn a_block_that_changed_on_disk_is_an_error_and_an_event_and_no_content() {
    let node = Node::new();
    let Some(disk) = disk(&node) else { return node.finish_without_plugin().await };
    let sequence = Random::new(21).bytes(SEQUENCE);
    let images = Images::start().await;
    let layer = Layer::of([Entry::file("data", sequence.repeat(BYTES / SEQUENCE))]);
    let image = images.with_layers("data", [layer]);
    let mut plugin = node.launch_with(on(&disk, &json!({}))).await;
    let script = "echo begins; while [ ! -e /local/go ]; do sleep 0.1; done; cat /data > /dev/null || echo fails";
    let task = node.task(&image).sh(script).build(&mut plugin).await;
    plugin.started(&task).await;
    task.stdout().contains("begins", seconds(30)).await;
    let files = protected(&disk, 2).await;
    flip(&disk, &sequence);
    forget(&files);
    fs::write(task.dir().join("local/go"), "").must("tell the task to go on");
    let told = |event: &DriverTaskEvent| event.message.contains("A layer of the image changed on disk");
    plugin.streams.event("the changed block", told).await;
    // The task still uses the layer. Another one gets it anew.
    let other = node.task(&image).sh("cmp /data /local/expected && echo same").build(&mut plugin).await;
    fs::write(other.dir().join("local/expected"), sequence.repeat(BYTES / SEQUENCE)).must("written");
    plugin.started(&other).await;
    assert_eq!(output(&mut plugin, &other).await, "same\n");
    assert_eq!(output(&mut plugin, &task).await, "begins\nfails\n");
    protected(&disk, 2).await;
    let checked = run(&node, &["image", "fsck", "--json"]).await.well().json();
    assert_eq!(checked["findings"], json!([]), "{checked}");
    node.finish(plugin).await;
}

#[tokio::test]
async fn layers_are_protected_that_streamed_or_that_an_earlier_plugin_pulled() {
    let node = Node::new();
    let Some(disk) = disk(&node) else { return node.finish_without_plugin().await };
    let Some(scene) = Scene::new(&node).await else { return node.finish_without_plugin().await };
    let mut plugin = node.launch_with(on(&disk, &json!({"lazy": {"min_size": "1"}, "fs_verity": false}))).await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh("true").build(&mut plugin).await;
    plugin.started(&task).await;
    output(&mut plugin, &task).await;
    assert!(!self::images(&disk).iter().any(|image| is_protected(image)));
    plugin.shutdown().await;
    let mut plugin = node.launch_with(on(&disk, &json!({"lazy": {"min_size": "1"}}))).await;
    protected(&disk, 1).await;
    let task = node.task(&scene.name).sh("sha256sum < /large").option("init", json!(true));
    // With a security module, only a task with an init starts before its image is here.
    let task = task.build(&mut plugin).await;
    plugin.started(&task).await;
    let told = |event: &DriverTaskEvent| event.message.contains("the task starts before all of it is here");
    plugin.streams.event("the start of an incomplete image", told).await;
    let files = protected(&disk, 3).await;
    let first = output(&mut plugin, &task).await;
    forget(&files);
    let task = node.task(&scene.name).sh("sha256sum < /large").build(&mut plugin).await;
    plugin.started(&task).await;
    assert_eq!(output(&mut plugin, &task).await, first);
    run(&node, &["image", "prune"]).await.well();
    assert_eq!(self::images(&disk), Vec::<PathBuf>::new());
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_node_that_cannot_protect_layers_says_so() {
    let node = Node::new();
    // Layers on tmpfs are files in directories, with every kernel.
    let memory = TempDir::with_prefix_in("oci-rs-", "/dev/shm").must("a directory");
    let mut plugin = node.launch_with(json!({"data_dir": memory.path(), "fs_verity": true})).await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh("true").build(&mut plugin).await;
    let error = plugin.start(&task).await.expect_err("refused").to_string();
    assert!(error.contains("fs_verity: layers in") && error.contains("tune2fs -O verity"), "{error}");
    drop(task);
    plugin.shutdown().await;
    let mut plugin = node.launch_with(json!({"data_dir": memory.path()})).await;
    let task = node.task(&images.busybox()).sh("echo runs").build(&mut plugin).await;
    plugin.started(&task).await;
    assert_eq!(output(&mut plugin, &task).await, "runs\n");
    node.finish(plugin).await;
}
