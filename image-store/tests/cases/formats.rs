//! Well-formed images of registries: tags, digests, indexes, both families of media types, every compression.

use std::{sync::Arc, time::Duration};

use fixtures::{
    image::{Built, Compression, Document, Entry, Format, Image, Layer},
    registry::{Action, DockerRegistry, Fault},
};
use image_store::{Limits, PullEvent, Silent};
use serde_json::json;

use crate::common::{Bench, Recorder, Shown, describe, limits, noise, request, small};

fn marker(image: &image_store::Image) -> String {
    Shown::nth(image, 0).read("etc/marker")
}

#[tokio::test(flavor = "multi_thread")]
async fn by_tag_and_by_digest() {
    let bench = Bench::new();
    let built = small("one");
    let reference = bench.push("team/app:1", &built);
    let image = bench.pull(&reference).await.unwrap();
    assert_eq!((marker(&image).as_str(), &image.digest), ("one", &built.digest()));
    let by_digest = bench.registry.reference(&format!("team/app@{}", built.digest()));
    assert_eq!(bench.pull(&by_digest).await.unwrap().layers, image.layers);
    let both = bench.registry.reference(&format!("team/app:gone@{}", built.digest()));
    assert_eq!(bench.pull(&both).await.unwrap().layers, image.layers);
    assert_eq!(bench.registry.count("/blobs/"), 2, "one layer and one config: the digest says that they are here");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_format_and_compression_gives_the_same_tree() {
    let bench = Bench::new();
    let mut trees = Vec::new();
    for (at, (format, compression)) in [
        (Format::Oci, Compression::Gzip),
        (Format::Oci, Compression::Zstd),
        (Format::Oci, Compression::Plain),
        (Format::Docker, Compression::Gzip),
        (Format::Docker, Compression::Plain),
    ]
    .into_iter()
    .enumerate()
    {
        let layer = Layer::of([Entry::dir("."), Entry::dir("etc"), Entry::file("etc/marker", format!("{}", at / 9))]);
        let built = Image::new().format(format).layer(layer.compression(compression)).build();
        // A new store each time, otherwise the layer would exist already.
        let bench = Bench::new();
        let image = bench.pull(&bench.push("app:1", &built)).await.unwrap();
        trees.push(describe(&image.layers[0]));
    }
    assert!(trees.windows(2).all(|pair| pair[0] == pair[1]), "{trees:#?}");
    bench.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn sha512_names_blobs_and_layers() {
    use sha2::Digest as _;
    let sha512 = |bytes: &[u8]| format!("sha512:{}", hex::encode(sha2::Sha512::digest(bytes)));
    let layer = Layer::of([Entry::dir("etc"), Entry::file("etc/marker", "long")]);
    let (diff_id, blob) = (sha512(layer.tar()), sha512(&layer.blob()));
    let built = Image::new().layer(layer.claim_diff_id(&diff_id).claim_blob(&blob)).build();
    let bench = Bench::new();
    assert_eq!(marker(&bench.pull(&bench.push("app:1", &built)).await.unwrap()), "long");
}

#[tokio::test(flavor = "multi_thread")]
async fn large_layers_take_the_two_thread_way() {
    let bench = Bench::new();
    let data = noise(20 << 20);
    let image = bench.unpack([Entry::dir("."), Entry::file("big", data.clone())]).await.unwrap();
    assert!(std::fs::read(image.layers[0].join("big")).unwrap() == data);
}

#[tokio::test(flavor = "multi_thread")]
async fn indexes_lead_to_this_machine_two_deep() {
    let bench = Bench::new();
    let other = Image::new().platform("linux", "s390x", "").layer(Layer::of([Entry::file("x", "")])).build();
    let mine = small("mine");
    let inner = Built::index(&[other, mine.clone()], true);
    let image = bench.pull(&bench.push("flat:1", &inner)).await.unwrap();
    assert_eq!((marker(&image).as_str(), &image.digest), ("mine", &mine.digest()));

    let nested = Built::index(&[inner], false);
    let image = bench.pull(&bench.push("nested:1", &nested)).await.unwrap();
    assert_eq!(image.digest, mine.digest());

    let too_deep = Built::index(&[Built::index(&[nested], false)], false);
    let error = bench.pull(&bench.push("deep:1", &too_deep)).await.unwrap_err();
    assert!(error.to_string().contains("nested") && !error.recoverable(), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_without_this_machine_says_what_it_has() {
    let bench = Bench::new();
    let other = Image::new().platform("linux", "s390x", "").build();
    let error = bench.pull(&bench.push("app:1", &Built::index(&[other], true))).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("s390x") && !text.contains("unknown") && !error.recoverable(), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn config_and_layers_arrive_topmost_first() {
    let bench = Bench::new();
    let built = Image::new()
        .layer(Layer::of([Entry::file("bottom", "")]))
        .layer(Layer::of([Entry::file("top", "")]))
        .run(json!({
            "Cmd": ["serve"],
            "Env": ["A=1", "BROKEN"],
            "User": "app",
            "WorkingDir": "/srv",
            "StopSignal": "SIGQUIT",
        }))
        .build();
    let image = bench.pull(&bench.push("app:1", &built)).await.unwrap();
    assert!(image.layers[0].join("top").exists() && image.layers[1].join("bottom").exists());
    assert_eq!(image.config.cmd.as_deref(), Some(&["serve".to_owned()][..]));
    assert_eq!(image.config.env, [("A".to_owned(), "1".to_owned())]);
    assert_eq!((image.config.user.as_str(), image.config.working_dir.as_str()), ("app", "/srv"));
}

#[tokio::test(flavor = "multi_thread")]
async fn images_without_layers_and_with_equal_layers_can_be_mounted() {
    let bench = Bench::new();
    let image = bench.pull(&bench.push("scratch:1", &Image::new().build())).await.unwrap();
    assert!(image.layers.len() == 1 && image.layers[0].is_dir());

    let layer = || Layer::of([Entry::file("same", "")]);
    let twice = Image::new().layer(layer()).layer(Layer::of([Entry::file("other", "")])).layer(layer()).build();
    let image = bench.pull(&bench.push("twice:1", &twice)).await.unwrap();
    assert_eq!(image.layers.len(), 2);
    assert!(image.layers[0].join("same").exists() && image.layers[1].join("other").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn latest_always_asks_and_other_tags_only_when_told() {
    let bench = Bench::new();
    let latest = bench.push("app:latest", &small("old"));
    let fixed = bench.push("app:1", &small("old"));
    bench.pull(&latest).await.unwrap();
    bench.pull(&fixed).await.unwrap();
    bench.push("app:latest", &small("new"));
    bench.push("app:1", &small("new"));
    assert_eq!(marker(&bench.pull(&latest).await.unwrap()), "new");
    bench.registry.forget_requests();
    assert_eq!(marker(&bench.pull(&fixed).await.unwrap()), "old");
    assert_eq!(bench.registry.requests().len(), 0);
    let force = image_store::PullRequest { force: true, ..request(&fixed) };
    let forced = bench.store.acquire(force, "task", Arc::new(Silent)).await.unwrap();
    assert_eq!(marker(&forced), "new");
    // An unchanged image needs one HEAD.
    bench.registry.forget_requests();
    bench.pull(&latest).await.unwrap();
    let methods: Vec<_> = bench.registry.requests().into_iter().map(|request| request.method).collect();
    assert_eq!(methods, ["HEAD"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_pulls_are_deduplicated() {
    let bench = Bench::new();
    let reference = bench.push("app:latest", &small("shared"));
    // The last caller asks before the first one has its answer.
    bench.registry.fault(Fault::on("/manifests/", Action::Delay(Duration::from_millis(500))).times(1));
    let pulls = (0..8).map(|at| {
        let (store, request) = (bench.store.clone(), request(&reference));
        tokio::spawn(async move { store.acquire(request, format!("task {at}"), Arc::new(Silent)).await })
    });
    for pull in pulls.collect::<Vec<_>>() {
        pull.await.unwrap().unwrap();
    }
    assert_eq!(bench.registry.count("/manifests/"), 1);
    assert_eq!(bench.registry.count("/blobs/"), 2);
    assert_eq!(bench.store.leases().unwrap().len(), 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_events_come_in_order() {
    let bench = Bench::new();
    let reference = bench.push("app:1", &small("progress"));
    let recorder = Arc::new(Recorder::default());
    bench.store.acquire(request(&reference), "task", recorder.clone()).await.unwrap();
    let mut events = std::mem::take(&mut *recorder.0.lock().unwrap());
    events.retain(|event| !matches!(event, PullEvent::Waiting(_)));
    assert!(matches!(events.first(), Some(PullEvent::Started { .. })));
    let total = match &events[1] {
        PullEvent::Resolved { bytes_total, layers: 1, .. } => *bytes_total,
        other => panic!("{other:?}"),
    };
    assert!(
        events.iter().any(
            |event| matches!(event, PullEvent::Advanced { bytes_done, layers_done: 1, .. } if *bytes_done == total)
        )
    );
    let is_layers = |event: &&PullEvent| matches!(event, PullEvent::LayerAdvanced { .. } | PullEvent::LayerDone { .. });
    let of_layer: Vec<_> = events.iter().filter(is_layers).collect();
    let PullEvent::LayerAdvanced { bytes_done: 0, bytes_total, .. } = of_layer[0] else { panic!("{of_layer:?}") };
    assert_eq!(*bytes_total, total);
    assert!(matches!(of_layer.last(), Some(PullEvent::LayerDone { .. })), "{of_layer:?}");
    assert!(matches!(events.last(), Some(PullEvent::Done { cached: false, bytes, .. }) if *bytes == total));
    bench.store.acquire(request(&reference), "task", recorder.clone()).await.unwrap();
    assert!(matches!(recorder.0.lock().unwrap().last(), Some(PullEvent::Done { cached: true, bytes: 0, .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_that_are_not_images_are_refused_with_a_reason() {
    let bench = Bench::new();
    let mut built = small("x");
    for (name, document, reason) in [
        ("schema1", json!({"schemaVersion": 1, "fsLayers": [], "history": []}), "schema 1"),
        ("nothing", json!({"schemaVersion": 2}), "neither"),
    ] {
        built.manifests = vec![Document::new("application/json", document.to_string())];
        let error = bench.pull(&bench.push(&format!("{name}:1"), &built)).await.unwrap_err();
        assert!(error.to_string().contains(reason) && !error.recoverable(), "{error}");
    }
    let few = Bench::full(Vec::new(), Limits { layers: 1, ..limits() });
    let two = Image::new().layer(Layer::of([Entry::dir("a")])).layer(Layer::of([Entry::dir("b")])).build();
    let error = few.pull(&few.push("app:1", &two)).await.unwrap_err();
    assert!(error.to_string().contains("number of layers"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_registry() {
    let Some(registry) = DockerRegistry::start() else { return };
    let bench = Bench::new();
    let built = Built::index(&[small("real")], false);
    let reference = registry.push("team/app:1", &built);
    assert_eq!(marker(&bench.pull(&reference).await.unwrap()), "real");
    let missing = format!("{}/team/none:1", registry.host());
    let error = bench.pull(&missing).await.unwrap_err();
    assert!(!error.recoverable() && error.to_string().contains("not found"), "{error}");
}
