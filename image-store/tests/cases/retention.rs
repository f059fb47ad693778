//! Leases, removal, sweeps, and the leftovers of crashes and of other processes.

use std::{fs, sync::Arc, time::Duration};

use fixtures::image::{Entry, Image, Layer};
use image_store::{Retention, Silent, StoreError};

use crate::common::{Bench, Shown, request, small};

#[tokio::test(flavor = "multi_thread")]
async fn leases_hold_layers_until_released() {
    let bench = Bench::new();
    let reference = bench.push("app:1", &small("leased"));
    let image = bench.lease(&reference).await.unwrap();
    assert_eq!(bench.store.leases().unwrap(), ["task"]);
    let parsed = reference.parse().unwrap();
    assert!(matches!(bench.store.remove(&parsed), Err(StoreError::InUse { .. })));
    assert_eq!(bench.store.prune().unwrap().layers, 0);
    assert!(image.layers[0].exists());
    // Another process sees the same.
    let other = bench.second_store();
    assert_eq!(other.leases().unwrap(), ["task"]);
    assert_eq!(other.prune().unwrap().layers, 0);
    bench.store.release("task").unwrap();
    bench.store.release("task").unwrap();
    bench.store.release("never was").unwrap();
    assert_eq!(bench.store.list().unwrap().len(), 1);
    assert!(bench.store.remove(&parsed).unwrap());
    assert!(!bench.store.remove(&parsed).unwrap());
    assert_eq!((bench.layer_count(), bench.store.list().unwrap().len()), (0, 0));
    bench.lease(&reference).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn removing_one_image_keeps_what_another_needs() {
    let bench = Bench::new();
    let base = || Layer::of([Entry::file("base", "")]);
    let build = |name: &str| Image::new().layer(base()).layer(Layer::of([Entry::file(name, "")])).build();
    let one = bench.push("one:1", &build("one"));
    let two = bench.push("two:1", &build("two"));
    bench.lease(&one).await.unwrap();
    let image = bench.lease(&two).await.unwrap();
    bench.store.release("task").unwrap();
    assert!(bench.store.remove(&one.parse().unwrap()).unwrap());
    assert_eq!(bench.layer_count(), 2);
    assert!(image.layers.iter().all(|layer| layer.exists()));
    let report = bench.store.prune().unwrap();
    assert_eq!((report.images.len(), report.layers), (1, 2));
    assert_eq!(fs::read_dir(bench.root().join("configs")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(bench.root().join("trash")).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_keeps_the_layers_of_a_name_that_moved_on() {
    let bench = Bench::new();
    let reference = bench.push("app:latest", &small("old"));
    let old = bench.store.acquire(request(&reference), "old task", Arc::new(Silent)).await.unwrap();
    bench.push("app:latest", &small("new"));
    bench.lease(&reference).await.unwrap();
    bench.store.prune().unwrap();
    assert!(Shown::nth(&old, 0).path().join("etc/marker").exists());
    bench.store.release("old task").unwrap();
    assert_eq!(bench.store.prune().unwrap().layers, 1);
    assert!(!old.layers[0].exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_pull_keeps_the_lease_it_would_have_replaced() {
    let bench = Bench::new();
    let image = bench.lease(&bench.push("app:1", &small("running"))).await.unwrap();
    let broken = small("broken");
    let reference = bench.push("app:2", &broken);
    bench
        .registry
        .fault(fixtures::registry::Fault::on(&broken.blobs[0].0, fixtures::registry::Action::Status(404, Vec::new())));
    bench.lease(&reference).await.unwrap_err();
    bench.store.prune().unwrap();
    assert!(image.layers[0].exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn layers_of_another_boot_are_dropped_unless_synced() {
    let bench = Bench::new();
    let reference = bench.push("app:1", &small("boot"));
    let image = bench.lease(&reference).await.unwrap();
    let meta_path = image.layers[0].parent().unwrap().join("meta.json");
    let another_boot = |synced: &str| {
        let text = fs::read_to_string(&meta_path).unwrap();
        let mut meta: serde_json::Value = serde_json::from_str(&text).unwrap();
        meta["boot_id"] = "another".into();
        meta["synced"] = (synced == "synced").into();
        fs::write(&meta_path, meta.to_string()).unwrap();
    };
    another_boot("synced");
    bench.registry.forget_requests();
    bench.lease(&reference).await.unwrap();
    assert_eq!(bench.registry.count("/blobs/"), 0);
    // It is unusable also without a sweep: a pull replaces it.
    another_boot("unsynced");
    bench.lease(&reference).await.unwrap();
    assert_eq!(bench.registry.count("/blobs/"), 1);
    assert!(Shown::nth(&image, 0).path().join("etc/marker").exists());
    another_boot("unsynced");
    assert_eq!(bench.second_store().sweep().unwrap().broken_layers, 1);
    assert_eq!(bench.layer_count(), 0);
    bench.lease(&reference).await.unwrap();
    fs::write(&meta_path, "{ torn").unwrap();
    bench.lease(&reference).await.unwrap();
    assert_eq!(bench.registry.count("/blobs/"), 3);
}

/// The kernel could not write all of a layer that a task uses: the task keeps it, no other task gets it.
#[tokio::test(flavor = "multi_thread")]
async fn a_layer_that_may_not_have_reached_the_disk_is_for_no_other_task() {
    let bench = Bench::new();
    let reference = bench.push("app:1", &small("suspect"));
    let image = bench.lease(&reference).await.unwrap();
    let meta_path = image.layers[0].parent().unwrap().join("meta.json");
    let mut meta: serde_json::Value = serde_json::from_str(&fs::read_to_string(&meta_path).unwrap()).unwrap();
    meta["suspect"] = true.into();
    fs::write(&meta_path, meta.to_string()).unwrap();
    assert_eq!(bench.second_store().sweep().unwrap(), Default::default());
    let shown = Shown::nth(&image, 0);
    match bench.store.acquire(request(&reference), "other", Arc::new(Silent)).await {
        // The mount of the task keeps the image that was replaced.
        Ok(_) if image.layers[0].ends_with("fs.erofs") => {
            assert_eq!(bench.registry.count("/blobs/"), 3);
            bench.store.release("other").unwrap();
            bench.store.release("task").unwrap();
            assert!(shown.path().join("etc/marker").exists());
            return;
        }
        Ok(_) => panic!("another task got the layer"),
        Err(error) => assert!(error.recoverable() && error.to_string().contains("is damaged on disk"), "{error}"),
    }
    assert!(shown.path().join("etc/marker").exists());
    assert_eq!(bench.store.leases().unwrap(), ["task"]);
    bench.store.release("task").unwrap();
    assert_eq!(bench.second_store().sweep().unwrap().broken_layers, 1);
    bench.lease(&reference).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn layers_are_marked_as_synced_soon() {
    let bench = Bench::new();
    let image = bench.lease(&bench.push("app:1", &small("sync"))).await.unwrap();
    let meta = image.layers[0].parent().unwrap().join("meta.json");
    let is_synced = || fs::read_to_string(&meta).unwrap().contains("\"synced\": true");
    assert!(fixtures::wait::eventually(Duration::from_secs(20), is_synced).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_removes_only_abandoned_staging() {
    let bench = Bench::new();
    bench.lease(&bench.push("app:1", &small("alive"))).await.unwrap();
    let dead = bench.root().join("staging/1-dead-0/1-x-1/fs");
    fs::create_dir_all(&dead).unwrap();
    fs::write(dead.join("half"), "").unwrap();
    fs::write(bench.root().join("images/.tmp-1-x-1"), "half").unwrap();
    let other = bench.second_store();
    let report = other.sweep().unwrap();
    assert_eq!((report.staging, report.temporaries, report.broken_layers), (1, 1, 0));
    assert!(!dead.exists());
    assert_eq!(other.sweep().unwrap(), Default::default());
    // The running process still uses its staging directory.
    bench.lease(&bench.push("app:2", &small("still alive"))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_may_pull_the_same_image_at_once() {
    let bench = Bench::new();
    let reference = bench.push("app:1", &small("race"));
    let other = bench.second_store();
    let (one, two) = tokio::join!(
        bench.store.acquire(request(&reference), "one", Arc::new(Silent)),
        other.acquire(request(&reference), "two", Arc::new(Silent)),
    );
    assert_eq!(one.unwrap().layers, two.unwrap().layers);
    assert_eq!(bench.layer_count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_reported_before_the_download_and_is_recoverable() {
    let limits = image_store::Limits { free_bytes: u64::MAX / 2, ..crate::common::limits() };
    let bench = Bench::full(Vec::new(), limits);
    let error = bench.lease(&bench.push("app:1", &small("full"))).await.unwrap_err();
    assert!(error.recoverable() && error.to_string().contains("no space"), "{error}");
}

/// A policy without delay, for a disk that never counts as full.
const AT_ONCE: Retention = Retention { delay: Duration::ZERO, high: 101, low: 100 };
const NEVER: Retention = Retention { delay: Duration::from_secs(3600), high: 101, low: 100 };

#[tokio::test(flavor = "multi_thread")]
async fn unleased_images_are_removed_after_their_delay() {
    let bench = Bench::new();
    let image = bench.lease(&bench.push("app:1", &small("kept"))).await.unwrap();
    assert!(bench.store.retain(&AT_ONCE).unwrap().removed.is_empty());
    bench.store.release("task").unwrap();
    let kept = bench.store.retain(&NEVER).unwrap();
    assert!(kept.removed.is_empty() && kept.next.is_some());
    // Another process decides the same: all its input is on disk.
    let report = bench.second_store().retain(&AT_ONCE).unwrap();
    assert_eq!((report.removed.len(), report.layers, report.next), (1, 1, None));
    assert!(report.removed[0].bytes > 0 && report.removed[0].pressure.is_none());
    assert!(!image.layers[0].exists());
    for directory in ["images", "configs", "manifests", "layers", "leases", "trash"] {
        assert_eq!(fs::read_dir(bench.root().join(directory)).unwrap().count(), 0, "{directory}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_is_a_use() {
    let bench = Bench::new();
    bench.lease(&bench.push("app:1", &small("used"))).await.unwrap();
    let record = fs::read_dir(bench.root().join("images")).unwrap().next().unwrap().unwrap().path();
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(10_000);
    fs::File::open(&record).unwrap().set_modified(long_ago).unwrap();
    bench.store.release("task").unwrap();
    assert!(bench.store.retain(&NEVER).unwrap().removed.is_empty());
    fs::File::open(&record).unwrap().set_modified(long_ago).unwrap();
    let removed = bench.store.retain(&NEVER).unwrap().removed;
    assert!(removed[0].unused >= Duration::from_secs(10_000));
    // The waiter is woken.
    tokio::time::timeout(Duration::from_secs(5), bench.store.changed()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_removes_images_before_their_delay() {
    let bench = Bench::new();
    for (name, lease) in [("one:1", "one"), ("two:1", "two"), ("three:1", "three")] {
        let reference = bench.push(name, &small(name));
        bench.store.acquire(request(&reference), lease, Arc::new(Silent)).await.unwrap();
    }
    bench.store.release("one").unwrap();
    bench.store.release("three").unwrap();
    // Any disk is fuller than this.
    let report = bench.store.retain(&Retention { high: 0, low: 0, ..NEVER }).unwrap();
    let names: Vec<_> = report.removed.iter().map(|removed| removed.reference.repository()).collect();
    assert_eq!(names, ["one", "three"]);
    assert!(report.removed.iter().all(|removed| removed.pressure.is_some()));
    assert_eq!((bench.layer_count(), bench.store.list().unwrap().len()), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_pull_keeps_its_layers() {
    let bench = Arc::new(Bench::new());
    let layer = |name: &str| Layer::of([Entry::file(name, crate::common::noise(200_000))]);
    let image = (0..4).fold(Image::new(), |image, at| image.layer(layer(&format!("file{at}"))));
    let reference = bench.push("busy:1", &image.build());
    let remover = bench.second_store();
    for _ in 0..5 {
        let pull = bench.lease(&reference);
        tokio::pin!(pull);
        let image = loop {
            tokio::select! {
                image = &mut pull => break image.unwrap(),
                () = tokio::time::sleep(Duration::from_millis(1)) => drop(remover.retain(&AT_ONCE).unwrap()),
            }
        };
        assert!(image.layers.iter().all(|layer| layer.exists()));
        bench.store.release("task").unwrap();
        assert_eq!(remover.retain(&AT_ONCE).unwrap().layers, 4);
    }
}
