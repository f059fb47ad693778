//! Images from archives: every form that tools write, hostile archives, and the separation of loads from pulls.

use std::{fs, os::fd::OwnedFd, path::Path, time::Duration};

use fixtures::image::{self, Built, Compression, Entry, Layer, archive, compress};
use image_store::{Image, Limits, LoadRequest, PullError, Retention};
use serde_json::json;

use crate::common::{Bench, Shown, limits, shown, small};

const NAME: &str = "team/app:1";

async fn load_path(bench: &Bench, path: &Path, reference: &str, lease: &str) -> Result<Image, PullError> {
    let source: OwnedFd = fs::File::open(path).unwrap().into();
    let reference = reference.parse().unwrap();
    let timeout = Some(Duration::from_secs(60));
    let request = LoadRequest { source, name: "image.tar".into(), reference, pin: false, timeout };
    bench.store.load(request, lease).await
}

async fn load(bench: &Bench, bytes: &[u8], reference: &str) -> Result<Image, PullError> {
    let path = bench.directory.path().join("image.tar");
    fs::write(&path, bytes).unwrap();
    load_path(bench, &path, reference, "task").await
}

fn two_layers(compression: Compression) -> Built {
    let layer = |name: &str| Layer::of([Entry::file(name, name)]).compression(compression);
    image::Image::new().layer(layer("one")).layer(layer("two")).run(json!({"Cmd": ["/run"]})).build()
}

fn assert_two_layers(image: &Image) {
    assert_eq!(image.layers.len(), 2);
    assert_eq!(Shown::nth(image, 0).read("two"), "two");
    assert_eq!(Shown::nth(image, 1).read("one"), "one");
    assert_eq!(image.config.cmd, Some(vec!["/run".to_owned()]));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_form_and_every_compression() {
    for inner in [Compression::Plain, Compression::Gzip, Compression::Zstd] {
        let built = two_layers(inner);
        let forms = [
            built.saved(&[NAME]),
            built.saved(&[]),
            built.saved_as_layout(NAME),
            built.layout(json!({"io.containerd.image.name": "docker.io/team/app:1"})),
            built.layout(json!({"org.opencontainers.image.ref.name": "1"})),
            built.layout(json!(null)),
            Built::index(std::slice::from_ref(&built), true)
                .layout(json!({"org.opencontainers.image.ref.name": "team/app:1"})),
        ];
        for (at, form) in forms.into_iter().enumerate() {
            let bench = Bench::new();
            let plain = archive(form);
            for outer in [Compression::Plain, Compression::Gzip, Compression::Zstd] {
                let image = load(&bench, &compress(&plain, outer), NAME).await;
                assert_two_layers(&image.unwrap_or_else(|error| panic!("form {at}, {inner:?} in {outer:?}: {error}")));
            }
            // The second and the third load found their layers on disk, and there is one record.
            assert_eq!((bench.layer_count(), bench.store.list().unwrap().len()), (2, 1));
            bench.store.release("task").unwrap();
            bench.assert_clean();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_serves_as_well() {
    let bench = Bench::new();
    let directory = bench.directory.path().join("layout");
    for entry in two_layers(Compression::Gzip).layout(json!({"org.opencontainers.image.ref.name": "1"})) {
        entry.write_below(&directory);
    }
    assert_two_layers(&load_path(&bench, &directory, NAME, "task").await.unwrap());
    // Its links stay inside the directory.
    let secret = bench.directory.path().join("secret");
    fs::write(&secret, "[]").unwrap();
    fs::remove_file(directory.join("index.json")).unwrap();
    std::os::unix::fs::symlink("../secret", directory.join("index.json")).unwrap();
    let error = load_path(&bench, &directory, NAME, "task").await.unwrap_err();
    assert!(error.to_string().contains("leads out") && !error.recoverable(), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_name_decides_among_several() {
    let bench = Bench::new();
    let (one, two) = (small("one"), small("two"));
    let mut members = Vec::new();
    let mut images = Vec::new();
    for (at, (built, name)) in [(&one, "app:1"), (&two, "other:1")].into_iter().enumerate() {
        let (config, layer) = (format!("config{at}.json"), format!("layer{at}.tar"));
        members.push(Entry::file(config.clone(), built.blobs[1].1.clone()));
        members.push(Entry::file(layer.clone(), built.blobs[0].1.clone()));
        images.push(json!({"Config": config, "RepoTags": [name], "Layers": [layer]}));
    }
    members.push(Entry::file("manifest.json", json!(images).to_string()));
    let bytes = archive(members);
    for (name, marker) in [("app:1", "one"), ("docker.io/library/other:1", "two")] {
        let image = load(&bench, &bytes, name).await.unwrap();
        assert_eq!(Shown::nth(&image, 0).read("etc/marker"), marker);
    }
    let error = load(&bench, &bytes, "app:2").await.unwrap_err();
    assert!(error.to_string().contains("names in the archive: app:1, other:1") && !error.recoverable(), "{error}");
}

/// CVE-2026-50195: an archive must not decide what a name means at a registry.
#[tokio::test(flavor = "multi_thread")]
async fn a_loaded_image_is_never_taken_for_a_pulled_one() {
    let bench = Bench::new();
    let reference = bench.push("app:1", &small("pulled"));
    let pulled =
        bench.store.acquire(crate::common::request(&reference), "pull", std::sync::Arc::new(image_store::Silent));
    let pulled = pulled.await.unwrap();
    let fake = small("loaded");
    let loaded = load(&bench, &archive(fake.saved(&[&reference])), &reference).await.unwrap();
    assert_ne!(loaded.digest, pulled.digest);
    let again = bench.pull(&reference).await.unwrap();
    assert_eq!(again.layers, [shown(&pulled.layers[0])]);
    // Nor the other way round, after the load was first.
    let bench = Bench::new();
    let reference = bench.push("app:1", &small("pulled"));
    load(&bench, &archive(fake.saved(&[&reference])), &reference).await.unwrap();
    let pulled = bench.pull(&reference).await.unwrap();
    assert_eq!(fs::read_to_string(pulled.layers[0].join("etc/marker")).unwrap(), "pulled");
    assert_eq!(bench.store.list().unwrap().len(), 2);
}

/// A caller that knows only a layer's digest must not get the layer.
#[tokio::test(flavor = "multi_thread")]
async fn a_layer_on_disk_must_also_be_in_the_archive() {
    let bench = Bench::new();
    let secret = small("secret");
    bench.pull(&bench.push("secret:1", &secret)).await.unwrap();
    let mut members = secret.saved(&[NAME]);
    members.retain(|entry| entry.name() != b"layer0/layer.tar");
    for junk in [None, Some(Entry::file("layer0/layer.tar", small("junk").blobs[0].1.clone()))] {
        let mut members = members.clone();
        members.extend(junk);
        let error = load(&bench, &archive(members), NAME).await.unwrap_err();
        assert!(!error.recoverable(), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_and_hostile_archives_are_refused_permanently() {
    let bench = Bench::full(Vec::new(), Limits { ratio: 20, ratio_grace: 1 << 20, ..limits() });
    let good = || two_layers(Compression::Plain).saved(&[NAME]);
    let with = |entry: Entry| archive(good().into_iter().chain([entry]));
    let lying =
        image::Image::new().layer(Layer::of([Entry::file("a", "a")]).claim_diff_id(&image::digest(b"x"))).build();
    let mut changed = two_layers(Compression::Plain).layout(json!(null));
    changed[1] = Entry::file("blobs/sha256/".to_owned() + &lying.blobs[0].0[7..], "changed");
    let whole = archive(good());
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("no image archive", b"hello".to_vec()),
        ("neither a manifest.json", Vec::new()),
        ("neither a manifest.json", archive([Entry::file("x", "")])),
        ("manifest.json: ", archive([Entry::file("manifest.json", "{")])),
        ("has .. in its name", with(Entry::file("../evil", ""))),
        ("has an absolute name", with(Entry::file("/etc/evil", ""))),
        ("leads out of the archive", with(Entry::symlink("link", "../../etc/passwd"))),
        ("leads out of the archive", with(Entry::symlink("link", "/etc/passwd"))),
        ("is there twice", with(Entry::file("manifest.json", "[]"))),
        ("neither a file nor a directory", with(Entry::char_device("null", 1, 3))),
        ("diff id", archive(lying.saved(&[NAME]))),
        ("is missing", archive(changed)),
        ("ends in the middle", whole[..whole.len() / 2].to_vec()),
        ("times its size", compress(&archive([Entry::file("zeros", vec![0; 8 << 20])]), Compression::Gzip)),
        (
            "has .. in its name",
            archive([Entry::file(
                "manifest.json",
                json!([{"Config": "../../etc/shadow", "RepoTags": [NAME], "Layers": []}]).to_string(),
            )]),
        ),
    ];
    for (expected, bytes) in cases {
        let error = load(&bench, &bytes, NAME).await.unwrap_err();
        assert!(error.to_string().contains(expected) && !error.recoverable(), "{expected}: {error}");
        assert!(error.to_string().contains("image.tar") || error.to_string().contains("layer"), "{error}");
    }
    bench.assert_clean();
    let error = load_path(&bench, Path::new("/dev/null"), NAME, "task").await.unwrap_err();
    assert!(matches!(error, PullError::Unsupported { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn cve_2023_25153_large_documents_in_archives() {
    let bench = Bench::new();
    let large = || " ".repeat(5 << 20);
    let mut config = two_layers(Compression::Plain).saved(&[NAME]);
    let place = config.iter().position(|entry| entry.name().ends_with(b".json") && entry.name() != b"manifest.json");
    let place = place.unwrap();
    config[place] = Entry::file(config[place].name().to_vec(), large());
    for bytes in [
        archive([Entry::file("manifest.json", large())]),
        archive([Entry::file("index.json", large())]),
        archive(config),
    ] {
        let error = load(&bench, &compress(&bytes, Compression::Zstd), NAME).await.unwrap_err();
        assert!(matches!(error, PullError::TooLarge { .. }) && !error.recoverable(), "{error}");
    }
    // Names are limited as well: one long name, and many names.
    let error = load(&bench, &archive([Entry::file("n".repeat(5000), "")]), NAME).await.unwrap_err();
    assert!(error.to_string().contains("too long"), "{error}");
    bench.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loaded_image_is_removed_like_a_pulled_one() {
    let bench = Bench::new();
    let policy = |delay| Retention { delay: Duration::from_secs(delay), high: 101, low: 100 };
    load(&bench, &archive(two_layers(Compression::Gzip).saved(&[NAME])), NAME).await.unwrap();
    assert_eq!(bench.store.retain(&policy(0)).unwrap().layers, 0);
    bench.store.release("task").unwrap();
    assert_eq!(bench.store.retain(&policy(3600)).unwrap().layers, 0);
    let report = bench.store.retain(&policy(0)).unwrap();
    assert_eq!((report.removed.len(), report.layers), (1, 2));
    assert!(bench.store.list().unwrap().is_empty());
}
