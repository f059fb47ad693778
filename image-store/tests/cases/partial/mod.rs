//! Native layers that are mounted before their data is here.

mod joins;
mod reboot;
mod sources;

use std::{
    fs,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    sync::Arc,
    thread,
    time::Duration,
};

use fixtures::{
    image::{Built, Entry, Image, Layer},
    registry::{Action, Fault, Registry},
};
use image_store::{
    FsckOptions, LayerEvent, LayerEventKind, LayerFormat, PartialConfig, PullError, PullRequest, Silent, Store,
    StoreConfig, fsck,
};
use tokio::sync::mpsc;

use crate::{
    common::{Bench, Shown, config, noise, request},
    native::{manifest_of_archives, native_manifest, with_native},
};

/// Longer than any step takes.
const PATIENCE: Duration = Duration::from_secs(60);
/// Requests for metadata and hash tree come before those for data.
const FRONT: usize = 2;

/// A bench whose store serves layers from one byte on; `None` where the kernel does not announce reads.
#[allow(clippy::print_stdout, reason = "a skipped test says why")]
fn bench() -> Option<Bench> {
    let bench = Bench::in_images()?;
    let trial = tempfile::tempdir().unwrap();
    if let Err(error) = lazy::probe(trial.path()) {
        println!("skipped: {error}");
        return None;
    }
    let store = store(&bench.root(), 1);
    Some(Bench { store, ..bench })
}

fn store(root: &Path, min_size: u64) -> Store {
    open(root, |config| config, |partial| PartialConfig { min_size, ..partial })
}

/// A store with changes of its configuration. Without changes it serves layers from one byte on.
pub fn open(
    root: &Path,
    change: impl FnOnce(StoreConfig) -> StoreConfig,
    change_partial: impl FnOnce(PartialConfig) -> PartialConfig,
) -> Store {
    let partial = PartialConfig { min_size: 1, read_timeout: Duration::from_secs(30), bandwidth: None, profile: None };
    let partial = Some(change_partial(partial));
    Store::open(change(StoreConfig { layers: LayerFormat::Erofs { zstd: true }, partial, ..config(root) })).unwrap()
}

/// An image of one layer with a file of many chunks.
pub fn image() -> Built {
    with_native(&Image::new().layer(data_layer()).build(), |_, _| ())
}

pub fn content() -> Vec<u8> {
    noise(2_000_000)
}

/// The layer with the file.
fn data_layer() -> Layer {
    Layer::of([Entry::dir("etc"), Entry::file("etc/marker", "x"), Entry::file("data", content())])
}

/// The native layer of [`image`]: its digest and its bytes.
fn native_layer(built: &Built) -> &(String, Vec<u8>) {
    &built.blobs[built.blobs.len() - 2]
}

/// The digest of the native layer of [`image`].
fn layer(built: &Built) -> &str {
    &native_layer(built).0
}

/// The registry delivers the front of the layer, and then nothing.
fn stop_after_front(registry: &Registry, built: &Built) {
    registry.fault(Fault::on(layer(built), Action::Status(503, Vec::new())).after(FRONT));
}

/// Pushes [`image`] to a registry that delivers only the front of its layer. Returns the image and its reference.
fn push_front(bench: &Bench) -> (Built, String) {
    let built = image();
    let reference = bench.push("team/app:1", &built);
    stop_after_front(&bench.registry, &built);
    (built, reference)
}

pub fn events(store: &Store) -> mpsc::UnboundedReceiver<LayerEvent> {
    let (sender, receiver) = mpsc::unbounded_channel();
    store.on_layer_event(move |event| drop(sender.send(event)));
    receiver
}

pub async fn next(events: &mut mpsc::UnboundedReceiver<LayerEvent>, wanted: fn(&LayerEventKind) -> bool) -> LayerEvent {
    let found = async {
        loop {
            let event = events.recv().await.expect("an event");
            if wanted(&event.kind) {
                return event;
            }
        }
    };
    tokio::time::timeout(PATIENCE, found).await.expect("in time")
}

fn is_complete(kind: &LayerEventKind) -> bool {
    *kind == LayerEventKind::Complete
}

pub async fn acquire(store: &Store, reference: &str, owner: &str) -> Result<image_store::Image, PullError> {
    let request = PullRequest { lazy: true, ..request(reference) };
    store.acquire(request, owner, Arc::new(Silent)).await
}

/// A thread that reads the file in a mounted layer.
fn reader(layer: &Path) -> thread::JoinHandle<std::io::Result<Vec<u8>>> {
    let layer = layer.to_owned();
    thread::spawn(move || fs::read(Shown::of(&layer).path().join("data")))
}

fn is_partial(image: &image_store::Image) -> bool {
    image.layers.iter().any(|layer| layer.components().any(|part| part.as_os_str() == "partial"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_is_mounted_before_its_data_is_here_and_becomes_an_ordinary_one() {
    let Some(bench) = bench() else { return };
    let (built, reference) = push_front(&bench);
    let mut events = events(&bench.store);
    let image = acquire(&bench.store, &reference, "task").await.unwrap();
    assert_eq!(image.digest, native_manifest(&built));
    assert!(image.group.is_some() && is_partial(&image), "{image:?}");
    assert!(fsck(&bench.root(), &FsckOptions { repair: false, owners: None }).unwrap().is_sound());
    let usage = bench.store.usage().unwrap();
    assert!(usage[0].missing.is_empty() && usage[0].incomplete.len() == 1, "{usage:?}");
    let reading = reader(&image.layers[0]);
    let stalled = next(&mut events, |kind| matches!(kind, LayerEventKind::Stalled { .. })).await;
    assert_eq!(stalled.owners, [image_store::LeaseOwner::from("task")]);
    assert!(!reading.is_finished());
    // Another task shares the layer.
    let second = acquire(&bench.store, &reference, "second").await.unwrap();
    assert_eq!((&second.layers, &second.group), (&image.layers, &image.group));
    bench.registry.heal();
    assert!(reading.join().unwrap().unwrap() == content());
    next(&mut events, is_complete).await;
    let third = acquire(&bench.store, &reference, "third").await.unwrap();
    assert!(third.group.is_none() && !is_partial(&third), "{third:?}");
    assert!(fs::read(Shown::of(&third.layers[0]).path().join("data")).unwrap() == content());
    // A start that began before may still mount by the path that it got.
    assert!(reader(&image.layers[0]).join().unwrap().unwrap() == content());
    assert!(fsck(&bench.root(), &FsckOptions { repair: false, owners: None }).unwrap().is_sound());
    for owner in ["task", "second", "third"] {
        bench.store.release(owner).unwrap();
    }
    bench.store.prune().unwrap();
    assert_eq!((bench.layer_count(), partials(&bench)), (0, 0));
    bench.assert_clean();
}

/// The number of partial layers on disk.
fn partials(bench: &Bench) -> usize {
    let listed = fs::read_dir(bench.root().join("partial")).unwrap();
    listed.filter(|entry| entry.as_ref().unwrap().path().is_dir()).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn small_layers_and_those_of_requests_that_need_them_whole_are_pulled() {
    let Some(bench) = bench() else { return };
    let reference = bench.push("team/app:1", &image());
    let large = store(&bench.root(), 1 << 40);
    let image = acquire(&large, &reference, "small").await.unwrap();
    assert!(image.group.is_none() && !is_partial(&image));
    large.release("small").unwrap();
    large.prune().unwrap();
    let whole = bench.lease(&reference).await.unwrap();
    assert!(whole.group.is_none() && !is_partial(&whole));
    assert_eq!(partials(&bench), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_front_that_is_refused_leads_to_the_original() {
    let Some(bench) = bench() else { return };
    let original = Image::new().layer(Layer::of([Entry::file("data", content())])).build();
    let built = with_native(&original, |_, layer| {
        layer["annotations"]["org.oci-rs.native.verity"] = serde_json::json!(fixtures::image::digest(b"x"));
    });
    let image = acquire(&bench.store, &bench.push("team/app:1", &built), "task").await.unwrap();
    assert_eq!(image.digest, manifest_of_archives(&built));
    assert!(image.group.is_none());
    assert_eq!(partials(&bench), 0);
}

/// The hash tree is right for the bytes that the layer should have, and the registry has others.
#[tokio::test(flavor = "multi_thread")]
async fn wrong_bytes_are_an_error_and_never_content() {
    let Some(bench) = bench() else { return };
    let original = Image::new().layer(Layer::of([Entry::file("data", content())])).build();
    let built = with_native(&original, |image, layer| {
        let metadata: usize = layer["annotations"]["org.oci-rs.native.metadata"].as_str().unwrap().parse().unwrap();
        image[metadata + 300_000] ^= 1;
    });
    let mut events = events(&bench.store);
    let image = acquire(&bench.store, &bench.push("team/app:1", &built), "task").await.unwrap();
    let error = reader(&image.layers[0]).join().unwrap().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    next(&mut events, |kind| matches!(kind, LayerEventKind::WrongChunk { .. })).await;
    next(&mut events, |kind| matches!(kind, LayerEventKind::ReadFailed { .. })).await;
    assert_eq!(bench.layer_count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_is_removed_before_it_is_complete_leaves_nothing() {
    let Some(bench) = bench() else { return };
    let (_, reference) = push_front(&bench);
    acquire(&bench.store, &reference, "task").await.unwrap();
    bench.store.prune().unwrap();
    assert_eq!(partials(&bench), 1, "a lease holds it");
    bench.store.release("task").unwrap();
    assert!(bench.store.remove(&reference.parse().unwrap()).unwrap());
    assert_eq!((bench.layer_count(), partials(&bench)), (0, 0));
    bench.registry.heal();
    // It can be pulled again, although the service has not noticed the removal yet.
    let mut events = events(&bench.store);
    let again = acquire(&bench.store, &reference, "task").await.unwrap();
    assert!(reader(&again.layers[0]).join().unwrap().unwrap() == content());
    next(&mut events, is_complete).await;
}

/// What a monitor would do: it holds the group while the plugin is replaced.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_process_goes_on_with_the_reads_that_wait() {
    let Some(bench) = bench() else { return };
    let (built, reference) = push_front(&bench);
    let image = acquire(&bench.store, &reference, "task").await.unwrap();
    let group: OwnedFd = image.group.as_ref().unwrap().as_fd().try_clone_to_owned().unwrap();
    let reading = reader(&image.layers[0]);
    let mut first = events(&bench.store);
    next(&mut first, |kind| matches!(kind, LayerEventKind::Stalled { .. })).await;
    let successor = store(&bench.root(), 1);
    let mut events = events(&successor);
    let inode = std::os::unix::fs::MetadataExt::ino(&fs::metadata(&image.layers[0]).unwrap());
    let find = move |files: &[(u64, u64)]| {
        assert!(files.iter().any(|(_, found)| *found == inode), "{files:?}");
        Some(group)
    };
    // It waits for the end of its predecessor.
    successor.resume_layers(find).unwrap();
    let whole = acquire(&successor, &reference, "another");
    bench.registry.heal();
    assert!(whole.await.unwrap().group.is_none(), "another process serves");
    bench.registry.fault(Fault::on(layer(&built), Action::Status(503, Vec::new())));
    bench.store.stop_serving_layers();
    bench.registry.heal();
    assert!(reading.join().unwrap().unwrap() == content());
    next(&mut events, is_complete).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_incomplete_image_is_completed_after_the_end_of_its_container() {
    let Some(bench) = bench() else { return };
    let (_, reference) = push_front(&bench);
    let image = acquire(&bench.store, &reference, "task").await.unwrap();
    let group = image.group.as_ref().unwrap().as_fd().try_clone_to_owned().unwrap();
    bench.store.release("task").unwrap();
    bench.store.stop_serving_layers();
    bench.registry.heal();
    let successor = store(&bench.root(), 1);
    let mut events = events(&successor);
    successor.resume_layers(|_| Some(group)).unwrap();
    next(&mut events, is_complete).await;
    let image = acquire(&successor, &reference, "task").await.unwrap();
    assert!(image.group.is_none() && !is_partial(&image));
}
