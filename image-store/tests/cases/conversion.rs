//! `image convert`: layouts with native images beside those that they have.

use std::{collections::BTreeSet, fs, path::Path};

use base64::Engine as _;
use fixtures::{
    image::{Built, Entry, Image, Layer, archive, digest},
    registry::DockerRegistry,
};
use image_store::{LayerFormat, NativeForm, Profile, ProfiledFile, Store, StoreConfig};
use serde_json::{Value, json};

use crate::{
    common::{Bench, config, noise},
    native::{agrees, original},
};

/// Converts the layout in an archive.
async fn convert_layout(archive: &Path, target: &Path, compressed: bool) -> image_store::Conversion {
    let form = NativeForm { profile: Profile::default(), reorder: false, compressed };
    convert_to(archive, target, form).await
}

async fn convert_to(archive: &Path, target: &Path, form: NativeForm) -> image_store::Conversion {
    let file = fs::File::open(archive).unwrap().into();
    let layout = image_store::LayoutImage { file, name: "layout".into(), image: None };
    image_store::convert_layout(layout, target.to_owned(), form, image_store::Limits::default()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_converted_layout_has_an_image_for_everyone() {
    let directory = tempfile::tempdir().unwrap();
    let (source, target, again) =
        (directory.path().join("source.tar"), directory.path().join("target"), directory.path().join("again"));
    let original = original();
    // An attestation is kept, and an image of another system too.
    let index = Built::index(&[original.clone(), Image::new().platform("windows", "amd64", "").build()], false);
    let layout = index.layout(json!({"org.opencontainers.image.ref.name": "1"}));
    fs::write(&source, archive(layout)).unwrap();
    let converted = convert_layout(&source, &target, true).await;
    assert_eq!(converted, convert_layout(&source, &again, true).await);
    assert_eq!(converted.images.len(), 1);
    let read = |name: &str| fs::read(target.join(name)).unwrap();
    assert_eq!(read("index.json"), fs::read(again.join("index.json")).unwrap());
    let index: Value = serde_json::from_slice(&read(&format!("blobs/sha256/{}", converted.index.hex()))).unwrap();
    let digests: Vec<&str> =
        index["manifests"].as_array().unwrap().iter().map(|entry| entry["digest"].as_str().unwrap()).collect();
    assert_eq!(digests[0], original.digest());
    assert_eq!(digests[2], converted.images[0].digest.as_str());
    // The index holds the native manifest, and that one its config.
    let held = |descriptor: &Value, content: &Value| {
        let content = base64::engine::general_purpose::STANDARD.decode(content.as_str().unwrap()).unwrap();
        assert_eq!(digest(&content), descriptor["digest"].as_str().unwrap());
        assert_eq!(json!(content.len()), descriptor["size"]);
        serde_json::from_slice::<Value>(&content).unwrap()
    };
    let native = &index["manifests"][2];
    let manifest = held(native, &native["annotations"]["org.oci-rs.native.manifest"]);
    let held_config = held(&manifest["config"], &manifest["config"]["data"]);
    assert_eq!(held_config["rootfs"]["diff_ids"][0], manifest["layers"][0]["digest"]);
    assert!(index["manifests"].as_array().unwrap().iter().all(|entry| entry["data"].is_null()), "skopeo loses it");
    assert!(!target.join("blobs").read_dir().unwrap().any(|entry| entry.unwrap().path().is_file()));

    let (Some(registry), Some(bench)) = (DockerRegistry::start(), Bench::in_images()) else { return };
    let name = format!("{}/team/app:1", registry.host());
    let (layout, remote) = (format!("oci:{}:1", target.display()), format!("docker://{name}"));
    let to = ["copy", "--all", "--preserve-digests", "--dest-tls-verify=false", &layout, &remote];
    if !agrees("skopeo", &to) {
        return;
    }
    let image = bench.pull(&name).await.unwrap();
    assert_eq!(image.digest, converted.images[0].digest.as_str());
    // An uncompressed image is for each kernel that mounts layers.
    let plain = directory.path().join("plain");
    let uncompressed = convert_layout(&source, &plain, false).await;
    assert!(uncompressed.images[0].bytes > converted.images[0].bytes, "{uncompressed:?} {converted:?}");
    let (layout, name) = (format!("oci:{}:1", plain.display()), format!("{}/team/plain:1", registry.host()));
    let to = format!("docker://{name}");
    agrees("skopeo", &["copy", "--all", "--preserve-digests", "--dest-tls-verify=false", &layout, &to]);
    let changed = StoreConfig { layers: LayerFormat::Erofs { zstd: false }, ..config(&bench.root()) };
    let bench = Bench { store: Store::open(changed).unwrap(), ..bench };
    assert_eq!(bench.pull(&name).await.unwrap().digest, uncompressed.images[0].digest.as_str());
    // Other programs choose what they chose before.
    let out = directory.path().join("out");
    let local = format!("oci:{}", out.display());
    agrees("skopeo", &["copy", "--src-tls-verify=false", &remote, &local]);
    let index: Value = serde_json::from_slice(&fs::read(out.join("index.json")).unwrap()).unwrap();
    assert_eq!(index["manifests"][0]["digest"], original.digest());
}

/// The entry of a native image in the index of a layout, and its manifest.
fn native_in(layout: &Path, converted: &image_store::Conversion) -> (Value, Value) {
    let read = |digest: &str| -> Value {
        let digest = digest.trim_start_matches("sha256:");
        serde_json::from_slice(&fs::read(layout.join("blobs/sha256").join(digest)).unwrap()).unwrap()
    };
    let index = read(converted.index.as_str());
    let is_native = |entry: &&Value| entry["digest"] == converted.images[0].digest.as_str();
    let entry = index["manifests"].as_array().unwrap().iter().find(is_native).unwrap().clone();
    (entry, read(converted.images[0].digest.as_str()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_profile_becomes_a_list_of_chunks_and_an_order_of_the_data() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("source.tar");
    let layer = Layer::of((0..40).map(|number| Entry::file(format!("file-{number:02}"), noise(50_000))));
    let built = Image::new().layer(layer).build();
    let uuid = built.diff_ids[0].trim_start_matches("sha256:")[..32].to_owned();
    let files = ["file-39", "gone", "file-03", "file-20"].map(|path| json!({"path": path, "parts": "0"}));
    let profile: Profile = serde_json::from_value(json!({"layers": {uuid: files}})).unwrap();
    let index = Built::index(&[built], false);
    fs::write(&source, archive(index.layout(json!({"org.opencontainers.image.ref.name": "1"})))).unwrap();
    let mut digests = BTreeSet::new();
    // A file takes 13 blocks, a chunk has 32.
    for (reorder, compressed, version, first) in
        [(false, true, "2", Some("1,8,15-16")), (true, true, "4", Some("0-1")), (true, false, "3", Some("0-1"))]
    {
        let form = NativeForm { profile: profile.clone(), reorder, compressed };
        let target = directory.path().join(version);
        let converted = convert_to(&source, &target, form.clone()).await;
        let (entry, manifest) = native_in(&target, &converted);
        assert_eq!(entry["annotations"]["org.oci-rs.native"], version);
        assert_eq!(manifest["layers"][0]["annotations"]["org.oci-rs.native.first"].as_str(), first, "{version}");
        digests.insert(manifest["layers"][0]["digest"].to_string());
        let again = convert_to(&source, &directory.path().join(format!("{version}-again")), form).await;
        assert_eq!(again, converted, "the same bytes");
    }
    // Noise is not compressed, so the form of the data decides alone.
    assert_eq!(digests.len(), 2, "{digests:?}");
    // A profile of other layers changes nothing, and one in the order of the files changes no order.
    let (uuid, files) = profile.layers.into_iter().next().unwrap();
    let other = Profile { layers: [("00".repeat(16), files.clone())].into() };
    let of_first = ProfiledFile { path: "file-00".into(), ..files[0].clone() };
    let in_order = Profile { layers: [(uuid, vec![of_first])].into() };
    for (profile, name, first) in [(other, "other", None), (in_order, "first", Some("0"))] {
        let target = directory.path().join(name);
        let converted = convert_to(&source, &target, NativeForm { profile, reorder: true, compressed: true }).await;
        let (entry, manifest) = native_in(&target, &converted);
        assert_eq!(entry["annotations"]["org.oci-rs.native"], "2");
        assert_eq!(manifest["layers"][0]["annotations"]["org.oci-rs.native.first"].as_str(), first);
    }
}
