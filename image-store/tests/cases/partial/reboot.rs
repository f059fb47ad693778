//! A store that is opened after the process that served has ended. No other process holds its group, as after a reboot,
//! or after everything was killed.

use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::Duration,
};

use fixtures::{
    image::Built,
    registry::{Action, Fault, Registry},
    wait::eventually,
};
use image_store::{FsckOptions, Store, fsck};
use serde_json::Value;

use super::{
    acquire, bench, content, events, image, is_complete, is_partial, layer, next, open, partials, reader,
    stop_after_front,
};
use crate::{child::Scene, common::Bench};

/// The chunks of the layer that are here before the end of the process.
const HERE: usize = 5;

/// Has another process serve an image until it has some chunks, and kills it. Returns the directory of its layer.
async fn half_an_image(bench: &Bench, reference: &str, built: &Built) -> PathBuf {
    let bytes = HERE * lazy::CHUNK as usize + 1000;
    let registry: &Registry = &bench.registry;
    registry.fault(Fault::on(layer(built), Action::Cut(bytes)).after(super::FRONT).times(1));
    stop_after_front(registry, built);
    let mut process = Scene::Serve(reference.to_owned()).start(&bench.root());
    let directory = || {
        let listed = fs::read_dir(bench.root().join("partial")).ok()?;
        listed.map(|entry| entry.unwrap().path()).find(|path| path.is_dir())
    };
    let here = || directory().is_some_and(|directory| present(&directory) == HERE);
    assert!(eventually(Duration::from_secs(30), here).await, "the process serves");
    // Its lease is written last.
    let leased = || bench.store.leases().unwrap().contains(&"task".into()) && !bench.store.list().unwrap().is_empty();
    assert!(eventually(Duration::from_secs(30), leased).await);
    tokio::time::sleep(Duration::from_millis(200)).await;
    process.kill();
    registry.heal();
    directory().unwrap()
}

/// The number of chunks that count as present.
fn present(directory: &Path) -> usize {
    fs::read(directory.join("present")).unwrap_or_default().iter().filter(|byte| **byte == 1).count()
}

/// The record is that of another boot.
fn reboot(directory: &Path) {
    let path = directory.join("partial.json");
    let mut record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    record["boot_id"] = "another".into();
    fs::write(&path, record.to_string()).unwrap();
}

/// What a file had not on disk when the power went.
fn lose(directory: &Path, from: u64, bytes: usize) {
    let image = fs::File::options().write(true).open(directory.join("fs.erofs")).unwrap();
    image.write_all_at(&vec![0; bytes], from).unwrap();
}

fn metadata(directory: &Path) -> u64 {
    let record: Value = serde_json::from_slice(&fs::read(directory.join("partial.json")).unwrap()).unwrap();
    record["metadata"].as_u64().unwrap()
}

/// Opens the store as the next plugin does.
fn next_plugin(bench: &Bench) -> Store {
    let store = open(&bench.root(), |config| config, |partial| partial);
    store.sweep().unwrap();
    store
}

/// The image can be used, is right, and leaves nothing.
async fn assert_usable(bench: &Bench, store: &Store, reference: &str, what: &str) {
    let image = acquire(store, reference, "task").await.unwrap();
    assert!(reader(&image.layers[0]).join().unwrap().unwrap() == content(), "{what}");
    let whole = || {
        let listed = fs::read_dir(bench.root().join("layers")).unwrap();
        listed.count() == 1
    };
    assert!(eventually(Duration::from_secs(30), whole).await, "{what}: the layer is completed");
    let again = acquire(store, reference, "task").await.unwrap();
    assert!(!is_partial(&again) && again.group.is_none(), "{what}: {again:?}");
    let found = fsck(&bench.root(), &FsckOptions { repair: false, owners: None }).unwrap();
    assert!(found.is_sound(), "{what}: {found:?}");
    store.release("task").unwrap();
    store.prune().unwrap();
    assert_eq!((bench.layer_count(), partials(bench)), (0, 0), "{what}");
}

#[tokio::test(flavor = "multi_thread")]
async fn half_an_image_is_completed_without_what_is_here() {
    for rebooted in [false, true] {
        let Some(bench) = bench() else { return };
        let built = image();
        let reference = bench.push("team/app:1", &built);
        let directory = half_an_image(&bench, &reference, &built).await;
        if rebooted {
            reboot(&directory);
        }
        let store = next_plugin(&bench);
        let mut events = events(&store);
        store.resume_layers(|_| None).unwrap();
        next(&mut events, is_complete).await;
        let received: u64 = store.traffic().iter().map(|(_, traffic)| traffic.bytes).sum();
        let missing = content().len() - (HERE - 1) * lazy::CHUNK as usize;
        assert!(received as usize <= missing, "{received} of {missing}, rebooted: {rebooted}");
        assert_usable(&bench, &store, &reference, "").await;
    }
}

/// A layer is synced some time after its last byte came. A power cut before that may lose any of its data.
#[tokio::test(flavor = "multi_thread")]
async fn a_layer_that_streamed_is_fetched_again_if_the_power_goes_before_its_sync() {
    let Some(bench) = bench() else { return };
    let reference = bench.push("team/app:1", &image());
    let store = next_plugin(&bench);
    let mut events = events(&store);
    acquire(&store, &reference, "task").await.unwrap();
    next(&mut events, is_complete).await;
    drop(store);
    let layer = fs::read_dir(bench.root().join("layers")).unwrap().next().unwrap().unwrap().path();
    let record = layer.join("meta.json");
    let mut meta: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    meta["boot_id"] = "another".into();
    meta["synced"] = false.into();
    fs::write(&record, meta.to_string()).unwrap();
    lose(&layer, 512 << 10, 8192);
    let store = next_plugin(&bench);
    assert_eq!(bench.layer_count(), 0);
    assert_usable(&bench, &store, &reference, "").await;
}

/// What is lost, and a function that loses it.
type Cut<'a> = (&'a str, &'a dyn Fn(&Path));

/// What a power cut can leave: files without their last bytes, and records without any.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_power_cut_leaves_is_never_shown() {
    let torn =
        |name: &'static str, text: &'static str| move |directory: &Path| fs::write(directory.join(name), text).unwrap();
    let gone = |name: &'static str| move |directory: &Path| fs::remove_file(directory.join(name)).unwrap();
    let data = |directory: &Path| {
        lose(directory, metadata(directory) + lazy::CHUNK + 4096, 8192);
        reboot(directory);
    };
    let chunks = |directory: &Path| {
        // The map reached the disk, the data did not.
        fs::write(directory.join("present"), vec![1; content().len().div_ceil(lazy::CHUNK as usize)]).unwrap();
        reboot(directory);
    };
    let front = |directory: &Path| {
        lose(directory, 4096, 64);
        reboot(directory);
    };
    let short = |directory: &Path| {
        let image = fs::File::options().write(true).open(directory.join("fs.erofs")).unwrap();
        image.set_len(100_000).unwrap();
        reboot(directory);
    };
    let cuts: [Cut<'_>; 11] = [
        ("a block of data", &data),
        ("chunks that count as present", &chunks),
        ("a block of metadata", &front),
        ("the end of the file", &short),
        ("the record", &torn("partial.json", "")),
        ("a part of the record", &torn("partial.json", "{\"version\":1,\"dig")),
        ("the map", &torn("present", "")),
        ("the name of the map", &gone("present")),
        ("the record of the layer", &torn("meta.json", "")),
        ("the name of the image", &torn("source.json", "{")),
        ("the file", &gone("fs.erofs")),
    ];
    for (what, cut) in cuts {
        let Some(bench) = bench() else { return };
        let built = image();
        let reference = bench.push("team/app:1", &built);
        let directory = half_an_image(&bench, &reference, &built).await;
        cut(&directory);
        let store = next_plugin(&bench);
        store.resume_layers(|_| None).unwrap();
        // Whether the layer is taken over or not is decided in the background.
        let decided = || !store.resumes_layers() || store.traffic().iter().any(|(_, traffic)| traffic.requests > 0);
        eventually(Duration::from_secs(2), decided).await;
        assert_usable(&bench, &store, &reference, what).await;
    }
}
