//! Pulls of whole layers that are served already, and everything that works on the store meanwhile.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    sync::Arc,
    time::{Duration, Instant},
};

use fixtures::{
    image::{Built, Entry, Image, Layer},
    registry::{Action, Fault, Registry},
};
use image_store::{FsckOptions, PartialConfig, PullError, PullRequest, Retention, Silent, Store, StoreError, fsck};

use super::{
    acquire, bench, content, data_layer, events, image, is_complete, is_partial, layer, native_layer, next, open,
    partials, push_front, reader, stop_after_front,
};
use crate::{
    common::{Bench, request},
    native::with_native,
};

/// Another image that has the layer of [`image`] and one of its own.
fn sibling() -> Built {
    let own = Layer::of([Entry::file("own", "y")]);
    with_native(&Image::new().layer(data_layer()).layer(own).build(), |_, _| ())
}

/// Bytes of the layer of [`image`].
fn size(built: &Built) -> u64 {
    native_layer(built).1.len() as u64
}

/// The bytes that a store received so far.
fn received(store: &Store) -> u64 {
    store.traffic().iter().map(|(_, traffic)| traffic.bytes).sum()
}

async fn whole(store: &Store, reference: &str, owner: &str) -> image_store::Image {
    let image = store.acquire(request(reference), owner, Arc::new(Silent)).await.unwrap();
    assert!(image.group.is_none() && !is_partial(&image), "{image:?}");
    image
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_of_the_whole_layer_takes_the_one_that_is_served_and_hurries_it() {
    let Some(bench) = bench() else { return };
    let (built, other) = (image(), sibling());
    let [first, second] =
        [("team/app:1", &built), ("team/other:1", &other)].map(|(name, image)| bench.push(name, image));
    assert!(other.blobs.iter().any(|(digest, _)| *digest == layer(&built)), "the images share the layer");
    // At this pace the layer takes 40 seconds.
    let slow = |partial| PartialConfig { bandwidth: Some(50_000), ..partial };
    let store = open(&bench.root(), |config| config, slow);
    let mut events = events(&store);
    let began = Instant::now();
    let served = acquire(&store, &first, "task").await.unwrap();
    assert!(is_partial(&served));
    let pulled = whole(&store, &second, "whole").await;
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    next(&mut events, is_complete).await;
    // The file is the same one, and it came once: front and data, manifests, configs and the small layer.
    let inode = |path: &std::path::Path| fs::metadata(path).unwrap().ino();
    assert_eq!(inode(&served.layers[0]), inode(pulled.layers.last().unwrap()));
    assert!(received(&store) < size(&built) + 100_000, "{} of {}", received(&store), size(&built));
    let requests = bench.registry.requests();
    let mut of_layer = requests.iter().filter(|request| request.path.contains(layer(&built)));
    assert!(of_layer.all(|request| request.header("range").is_some()), "the layer was asked for as a whole");
    assert!(reader(&served.layers[0]).join().unwrap().unwrap() == content());
    assert!(reader(pulled.layers.last().unwrap()).join().unwrap().unwrap() == content());
}

/// The image comes from a registry that is gone. Another one has the layer too.
#[tokio::test(flavor = "multi_thread")]
async fn a_pull_of_the_whole_layer_downloads_it_if_the_sources_of_the_service_are_gone() {
    let Some(bench) = bench() else { return };
    let (built, other) = (image(), Registry::start());
    let [first, second] = [bench.push("team/app:1", &built), other.push("team/app:1", &built)];
    let mut events = events(&bench.store);
    stop_after_front(&bench.registry, &built);
    let served = acquire(&bench.store, &first, "task").await.unwrap();
    let pulled = whole(&bench.store, &second, "whole").await;
    assert!(reader(&pulled.layers[0]).join().unwrap().unwrap() == content());
    assert_eq!((bench.layer_count(), partials(&bench)), (1, 1));
    // The task's layer is completed when its registry is back.
    bench.registry.heal();
    next(&mut events, is_complete).await;
    assert!(reader(&served.layers[0]).join().unwrap().unwrap() == content());
    assert_eq!(bench.layer_count(), 1);
}

/// A connection that breaks now and then is no reason to download the layer again.
#[tokio::test(flavor = "multi_thread")]
async fn a_pull_of_the_whole_layer_outlives_broken_connections_of_the_service() {
    let Some(bench) = bench() else { return };
    let built = image();
    let reference = bench.push("team/app:1", &built);
    bench.registry.fault(Fault::on(layer(&built), Action::Cut(400_000)).after(super::FRONT).times(4));
    acquire(&bench.store, &reference, "task").await.unwrap();
    let pulled = whole(&bench.store, &reference, "whole").await;
    assert!(reader(&pulled.layers[0]).join().unwrap().unwrap() == content());
    // A cut chunk is fetched again.
    assert!(received(&bench.store) < size(&built) + 4 * 140_000 + 100_000, "{}", received(&bench.store));
}

/// Everything that works on the store at the same time as tasks that read.
#[tokio::test(flavor = "multi_thread")]
async fn tasks_pulls_and_removals_do_not_disturb_one_another() {
    let Some(bench) = bench() else { return };
    let (built, other) = (image(), sibling());
    let [first, second] =
        [("team/app:1", &built), ("team/other:1", &other)].map(|(name, image)| bench.push(name, image));
    // The first reads take a while.
    bench.registry.fault(Fault::on(layer(&built), Action::Delay(Duration::from_millis(100))));
    let slow = |partial| PartialConfig { bandwidth: Some(1_000_000), ..partial };
    let store = open(&bench.root(), |config| config, slow);
    let mut events = events(&store);
    let starts = (0..8).map(|number| {
        let (store, reference) = (store.clone(), if number % 2 == 0 { first.clone() } else { second.clone() });
        tokio::spawn(async move { acquire(&store, &reference, &format!("task-{number}")).await.unwrap() })
    });
    let starts: Vec<_> = starts.collect();
    let (mut readers, mut used) = (Vec::new(), Vec::new());
    for start in starts {
        let image = start.await.unwrap();
        readers.push(reader(image.layers.last().unwrap()));
        used.push(image);
    }
    assert!(used.iter().any(is_partial));
    let pull = tokio::spawn({
        let (store, second) = (store.clone(), second.clone());
        async move { whole(&store, &second, "whole").await }
    });
    let retention = Retention { delay: Duration::ZERO, high: 101, low: 100 };
    while readers.iter().any(|reader| !reader.is_finished()) {
        let error = store.remove(&first.parse().unwrap()).unwrap_err();
        assert!(matches!(error, StoreError::InUse { .. }), "{error}");
        assert!(store.prune().unwrap().images.is_empty());
        assert!(store.retain(&retention).unwrap().removed.is_empty());
        store.sweep().unwrap();
        let found = fsck(&bench.root(), &FsckOptions { repair: true, owners: None }).unwrap();
        assert!(found.is_sound(), "{found:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for reader in readers {
        assert!(reader.join().unwrap().unwrap() == content());
    }
    pull.await.unwrap();
    next(&mut events, is_complete).await;
    let fronts = bench.registry.requests().into_iter().filter(|request| {
        let range = request.header("range").unwrap_or_default();
        request.path.contains(layer(&built)) && range.starts_with("bytes=0-")
    });
    assert_eq!(fronts.count(), 1, "one task fetches the metadata");
    store.release("whole").unwrap();
    for number in 0..8 {
        store.release(format!("task-{number}").as_str()).unwrap();
    }
    store.prune().unwrap();
    assert_eq!((bench.layer_count(), partials(&bench)), (0, 0));
    let bench = Bench { store, ..bench };
    bench.assert_clean();
}

/// A pull that is cancelled while it waits leaves the service and its task alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_pull_that_waits_for_the_service_can_be_cancelled() {
    let Some(bench) = bench() else { return };
    let (_, reference) = push_front(&bench);
    let mut events = events(&bench.store);
    let served = acquire(&bench.store, &reference, "task").await.unwrap();
    let hasty = PullRequest { timeout: Some(Duration::from_secs(1)), ..request(&reference) };
    let hasty = tokio::spawn({
        let store = bench.store.clone();
        async move { store.acquire(hasty, "hasty", Arc::new(Silent)).await.unwrap_err() }
    });
    // A task that starts at the same time does not wait for it.
    let second = acquire(&bench.store, &reference, "second").await.unwrap();
    assert!(is_partial(&second));
    let error = hasty.await.unwrap();
    assert!(matches!(error, PullError::Timeout { .. }), "{error}");
    bench.registry.heal();
    next(&mut events, is_complete).await;
    assert!(reader(&served.layers[0]).join().unwrap().unwrap() == content());
    assert_eq!(bench.store.leases().unwrap().len(), 2);
}
