//! The root of a task: mounted from layers, or copied on a node that cannot mount it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use fixtures::{
    busybox::Images,
    image::{Entry, Layer},
    must::Must,
    wait::seconds,
};
use kit::{calls::recoverable, node::Node, plugin::Plugin};
use proto::{driver::fingerprint_response::HealthState, structs::attribute::Value};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::json;

/// A directory on an overlay, as in a container. It is unmounted when the value is dropped.
pub struct Nested {
    directory: tempfile::TempDir,
}

impl Nested {
    pub fn new() -> Self {
        let directory = tempfile::TempDir::with_prefix("oci-rs-nested-").must("a directory");
        let at = |name: &str| directory.path().join(name);
        for name in ["lower", "upper", "work", "root"] {
            fs::create_dir(at(name)).must("a directory");
        }
        let (lower, upper, work) = (at("lower"), at("upper"), at("work"));
        let data = format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
        let data = std::ffi::CString::new(data).must("no NUL");
        mount("overlay", at("root"), "overlay", MountFlags::empty(), data.as_c_str()).must("an overlay");
        Self { directory }
    }

    pub fn data_dir(&self) -> PathBuf {
        self.directory.path().join("root/data")
    }
}

impl Drop for Nested {
    fn drop(&mut self) {
        // If the mount stays, the directory cannot be removed.
        unmount(self.directory.path().join("root"), UnmountFlags::DETACH).ok();
    }
}

/// An image with busybox, without `/etc/group`, and with only new entries in `/home`.
fn hiding(images: &Images) -> String {
    let hides = Layer::of([
        Entry::dir("etc"),
        Entry::whiteout("etc/group"),
        Entry::dir("home"),
        Entry::opaque("home"),
        Entry::file("home/new", "new"),
    ]);
    images.with_layers("hiding", [hides])
}

async fn root_kind(plugin: &Plugin) -> (String, bool) {
    let told = plugin.streams.fingerprint().await;
    let attribute = told.attributes.get("driver.oci-rs.rootfs").and_then(|attribute| attribute.value.clone());
    let Some(Value::StringVal(kind)) = attribute else { panic!("{attribute:?}") };
    (kind, told.health == i32::from(HealthState::Healthy))
}

/// Runs a task of the image. Returns its output and the events of its start.
async fn runs(node: &Node, plugin: &mut Plugin, image: &str, data_dir: &Path) -> (String, Vec<String>) {
    let script = "ls /etc /home; echo changed > /etc/passwd && cat /etc/passwd";
    let task = node.task(image).sh(script).build(plugin).await;
    plugin.started(&task).await;
    assert_eq!(plugin.wait(task.id()).await.code, 0);
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    let started =
        plugin.streams.event("the start", |event| event.task_id == task.id() && event.message.starts_with("Started"));
    started.await;
    let told = plugin.streams.events().into_iter().filter(|event| event.task_id == task.id());
    let events = told.map(|event| event.message).filter(|message| message.starts_with("Copying")).collect();
    let left = fs::read_dir(data_dir.join("containers")).must("the writable layers").count();
    assert_eq!(left, 0, "the copy is left");
    (task.stdout().all(seconds(5)).await, events)
}

const SHOWN: &str = "/etc:\nhostname\nhosts\npasswd\nresolv.conf\n\n/home:\nnew\nchanged\n";

#[tokio::test]
async fn on_an_overlay_the_image_is_copied_with_an_event() {
    let (node, nested, images) = (Node::new(), Nested::new(), Images::start().await);
    let mut plugin = node.launch_with(json!({"data_dir": nested.data_dir()})).await;
    assert_eq!(root_kind(&plugin).await, ("copy".to_owned(), true));
    for _ in 0..2 {
        let (output, events) = runs(&node, &mut plugin, &hiding(&images), &nested.data_dir()).await;
        assert_eq!(output, SHOWN);
        let [event] = &events[..] else { panic!("{events:?}") };
        assert!(event.contains("makes the start slow") && event.contains("is on overlayfs"), "{event}");
    }
    node.finish(plugin).await;
}

#[tokio::test]
async fn overlay_storage_that_is_not_possible_is_an_error() {
    let (node, nested, images) = (Node::new(), Nested::new(), Images::start().await);
    let mut plugin = node.launch_with(json!({"data_dir": nested.data_dir(), "rootfs": "overlay"})).await;
    assert_eq!(root_kind(&plugin).await, ("overlay".to_owned(), false));
    let task = node.task(&hiding(&images)).sh("true").build(&mut plugin).await;
    let status = plugin.start(&task).await.err().must("a refusal");
    assert!(!recoverable(&status) && status.message().contains("rootfs = \"auto\""), "{status}");
    plugin.destroy(task.id(), true).await.ok();
    node.finish(plugin).await;
}

#[tokio::test]
async fn the_operator_can_choose_a_copied_root() {
    let (node, images) = (Node::new(), Images::start().await);
    let mut plugin = node.launch_with(json!({"rootfs": "copy"})).await;
    assert_eq!(root_kind(&plugin).await, ("copy".to_owned(), true));
    let (output, events) = runs(&node, &mut plugin, &hiding(&images), &node.data_dir()).await;
    assert_eq!((output.as_str(), events.len()), (SHOWN, 1), "{events:?}");
    node.finish(plugin).await;
}

#[tokio::test]
async fn an_image_with_hundreds_of_layers_runs() {
    let (node, images) = (Node::new(), Images::start().await);
    let mut plugin = node.launch().await;
    assert_eq!(root_kind(&plugin).await, ("overlay".to_owned(), true));
    let layers = (0..298).map(|number| Layer::of([Entry::dir("home"), Entry::file(format!("home/{number}"), "")]));
    let image =
        images.with_layers("tall", layers.chain([Layer::of([Entry::dir("home"), Entry::file("home/top", "")])]));
    let task = node.task(&image).sh("ls /home | wc -l").build(&mut plugin).await;
    plugin.started(&task).await;
    assert_eq!(plugin.wait(task.id()).await.code, 0);
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    assert_eq!(task.stdout().all(seconds(5)).await, "300\n");
    node.finish(plugin).await;
}
