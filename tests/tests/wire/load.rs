//! Images from an archive of the task instead of a registry.

use std::{fs, os::unix::fs::symlink};

use fixtures::{
    busybox::{self, Images},
    image::{Compression, Entry, archive, compress},
    must::Must,
    wait::seconds,
};
use kit::{calls::recoverable, node::Node, plugin::Plugin, task::Task};
use serde_json::json;

const NAME: &str = "team/app:1";

/// A task with the archive in its local directory.
async fn task(node: &Node, plugin: &mut Plugin, image: &str, bytes: &[u8]) -> Task {
    let task = node.task(image).sh("echo $IMAGE_ENV").option("load", json!("image.tar")).build(plugin).await;
    fs::write(task.dir().join("local/image.tar"), bytes).must("write the archive");
    task
}

async fn runs(plugin: &mut Plugin, task: &Task) {
    plugin.started(task).await;
    assert_eq!(plugin.wait(task.id()).await.code, 0);
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    assert_eq!(task.stdout().all(seconds(5)).await, "from-image\n");
}

#[tokio::test]
async fn docker_archives_and_oci_layouts_run() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let built = busybox::image(Compression::Plain);
    for bytes in [
        archive(built.saved(&[NAME])),
        compress(&archive(built.saved_as_layout(NAME)), Compression::Gzip),
        compress(&archive(built.layout(json!({"org.opencontainers.image.ref.name": "1"}))), Compression::Zstd),
    ] {
        let task = task(&node, &mut plugin, NAME, &bytes).await;
        runs(&mut plugin, &task).await;
    }
    let layout = node.task(NAME).sh("echo $IMAGE_ENV").option("load", json!("some/layout")).build(&mut plugin).await;
    let directory = layout.dir().join("local/some/layout");
    built
        .layout(json!({"org.opencontainers.image.ref.name": NAME}))
        .iter()
        .for_each(|entry| entry.write_below(&directory));
    runs(&mut plugin, &layout).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn an_archive_that_cannot_be_loaded_is_a_final_error() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let good = archive(busybox::image(Compression::Gzip).saved(&[NAME]));
    let evil = archive(busybox::image(Compression::Gzip).saved(&[NAME]).into_iter().chain([Entry::file("../x", "")]));
    for (image, bytes, expected) in [
        ("other:1", &good[..], "names in the archive: team/app:1"),
        (NAME, b"hello", "no image archive"),
        (NAME, &good[..good.len() / 2], "ends in the middle"),
        (NAME, &evil[..], "has .. in its name"),
    ] {
        let task = task(&node, &mut plugin, image, bytes).await;
        let status = plugin.start(&task).await.err().must(expected);
        assert!(status.message().contains(expected) && !recoverable(&status), "{expected}: {status}");
    }
    let outside = node.temp_dir().join("outside.tar");
    fs::write(&outside, &good).must("write an archive");
    let task = task(&node, &mut plugin, NAME, b"").await;
    let path = task.dir().join("local/image.tar");
    fs::remove_file(&path).must("remove the archive");
    let status = plugin.start(&task).await.err().must("no archive");
    assert!(status.message().contains("does not exist") && !recoverable(&status), "{status}");
    symlink(&outside, &path).must("a link");
    let status = plugin.start(&task.restarted()).await.err().must("a link that leads out");
    assert!(status.message().contains("leads out") && !recoverable(&status), "{status}");
    fs::remove_file(&outside).must("remove the archive");
    node.finish(plugin).await;
}

/// A loaded image changes nothing for jobs that pull the same name.
#[tokio::test]
async fn a_loaded_image_does_not_replace_the_registrys_image() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let name = images.with_config("app", json!({"Env": ["PATH=/bin", "IMAGE_ENV=from-registry"]}));
    let task = task(&node, &mut plugin, &name, &archive(busybox::image(Compression::Plain).saved(&[&name]))).await;
    runs(&mut plugin, &task).await;
    let pulled = node.task(&name).sh("echo $IMAGE_ENV").build(&mut plugin).await;
    plugin.started(&pulled).await;
    plugin.wait(pulled.id()).await;
    plugin.destroy(pulled.id(), true).await.must("DestroyTask");
    assert_eq!(pulled.stdout().all(seconds(5)).await, "from-registry\n");
    node.finish(plugin).await;
}
