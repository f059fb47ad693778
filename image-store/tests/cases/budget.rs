//! The bounds of a pull: parallel downloads and memory.

use std::{sync::Arc, time::Duration};

use fixtures::{
    image::{Entry, Image, Layer},
    registry::{Action, DockerRegistry, Fault, Relay},
};
use image_store::{Limits, RegistryConfig, Silent};

use crate::{
    child::{PEAK, Scene},
    common::{Bench, limits, noise, request, small},
};

/// For one pull, and for all pulls together.
#[tokio::test(flavor = "multi_thread")]
async fn no_more_layers_are_asked_for_than_may_be_fetched_at_once() {
    for limits in [Limits { parallel_per_pull: 2, ..limits() }, Limits { parallel: 2, ..limits() }] {
        let bench = Bench::full(Vec::new(), limits);
        let layers = (0..6u8).map(|number| Layer::of([Entry::file("number", [number])]));
        let built = layers.fold(Image::new(), Image::layer).build();
        let blobs: Vec<_> = built.blobs.iter().take(6).map(|(digest, _)| digest.clone()).collect();
        for blob in &blobs {
            bench.registry.fault(Fault::on(blob, Action::Stall(0)));
        }
        let (store, request) = (bench.store.clone(), request(&bench.push("app:1", &built)));
        let pull = tokio::spawn(async move { store.acquire(request, "task", Arc::new(Silent)).await });
        let asked = || blobs.iter().map(|blob| bench.registry.count(blob)).sum::<usize>();
        assert!(fixtures::wait::eventually(Duration::from_secs(30), || asked() == 2).await, "{} layers", asked());
        // A third request would have arrived before another pull finishes.
        let other = Bench::new();
        other.pull(&other.push("other:1", &small("other"))).await.unwrap();
        assert_eq!(asked(), 2);
        pull.abort();
    }
}

/// The connection on which the documents came is open. The others must be made first: here this never ends, so all
/// layers come on the open one. A connection to the loopback without TLS would sometimes be made before the HTTP
/// client's own task has given the open one back.
#[tokio::test(flavor = "multi_thread")]
async fn the_largest_layer_comes_first_on_the_connection_of_the_documents() {
    let (Some(plain), Some(registry)) = (DockerRegistry::start(), DockerRegistry::start_tls()) else {
        // Only if the program is installed.
        return;
    };
    let layers = [5, 300, 20, 1, 80].map(|kib| Layer::of([Entry::file("noise", noise(kib << 10))]));
    let built = layers.into_iter().fold(Image::new(), Image::layer).build();
    for round in 0..20 {
        plain.push(&format!("app{round}:1"), &built);
    }
    registry.take_over(plain);
    let (config, largest) = (&built.blobs.last().unwrap().0, &built.blobs[1].0);
    for round in 0..20 {
        let relay = Relay::of_one_connection(&registry.host());
        let ca_file = Some(registry.ca_file());
        let bench = Bench::with(vec![RegistryConfig { host: relay.host(), ca_file, ..Default::default() }]);
        bench.pull(&format!("{}/app{round}:1", relay.host())).await.unwrap();
        let log = registry.access_log();
        let blobs: Vec<_> = log.lines().filter(|line| line.contains(&format!("/app{round}/blobs/"))).collect();
        assert!(blobs[0].contains(config) && blobs[1].contains(largest), "round {round}: {blobs:#?}");
    }
}

/// A layer that another process makes does not hold up the others.
#[tokio::test(flavor = "multi_thread")]
async fn layers_come_while_the_largest_one_is_locked() {
    let bench = Bench::new();
    let layers = [300, 5].map(|kib| Layer::of([Entry::file("noise", noise(kib << 10))]));
    let built = layers.into_iter().fold(Image::new(), Image::layer).build();
    let reference = bench.push("app:1", &built);
    let blobs: Vec<_> = built.blobs.iter().map(|(digest, _)| digest.clone()).collect();
    bench.registry.fault(Fault::on(&blobs[0], Action::Stall(0)));
    let other = bench.second_store();
    let wanted = request(&reference);
    let holds = tokio::spawn(async move { other.acquire(wanted, "other", Arc::new(Silent)).await });
    let asked = |blob: &str| bench.registry.count(blob);
    assert!(fixtures::wait::eventually(Duration::from_secs(30), || asked(&blobs[0]) == 1).await);
    let more = [Layer::of([Entry::file("noise", noise(300 << 10))]), Layer::of([Entry::file("new", "x")])];
    let image = more.into_iter().fold(Image::new(), Image::layer).build();
    let (store, wanted) = (bench.store.clone(), request(&bench.push("app:2", &image)));
    let pull = tokio::spawn(async move { store.acquire(wanted, "task", Arc::new(Silent)).await });
    let small = image.blobs[1].0.clone();
    assert!(fixtures::wait::eventually(Duration::from_secs(30), || asked(&small) == 1).await, "it waits for the lock");
    pull.abort();
    holds.abort();
}

/// Layers without a speed limit, each unpacked by two threads, together larger than the memory bound of a pull.
#[tokio::test(flavor = "multi_thread")]
async fn memory_does_not_depend_on_the_size_of_the_layers() {
    let bench = Bench::new();
    let data = noise(17 << 20);
    let layers = (0..5).map(|at| Layer::of([Entry::file("noise", data[at..].to_vec())]));
    let reference = bench.push("app:1", &layers.fold(Image::new(), Image::layer).build());
    let peak = bench.directory.path().join("peak");
    let status = Scene::Pull(reference).run(&bench.root(), PEAK, &peak);
    assert!(status.success(), "{status}");
    let peak = std::fs::read_to_string(peak).unwrap();
    let kib: u64 = peak.split_whitespace().next().unwrap().parse().unwrap();
    assert!(kib < 64 << 10, "{peak}");
}
