//! Native images: layers that are EROFS images in the registry.

use std::{
    fs,
    ops::Range,
    os::unix::fs::FileExt,
    path::Path,
    process::Command,
    sync::{Arc, Mutex},
};

use base64::Engine as _;
use fixtures::{
    image::{Built, Document, Entry, Image, Layer, digest},
    program::missing,
    registry::{Action, Fault},
};
use image_store::{LayerFormat, Progress, PullError, PullEvent, PullRequest, Silent, Store, StoreConfig};
use layer::{
    Converted, FileReads, FirstReads, Limits,
    digest::Algorithm,
    stream::{BlobReader, Piece},
};
use serde_json::{Value, json};

use crate::common::{Bench, config, describe, noise, request, shown};

/// Converts the blob of a layer.
pub fn convert(blob: &[u8]) -> (Vec<u8>, Converted) {
    convert_with(blob, FirstReads::default())
}

/// Converts the blob of a layer, of which this is read first. On a thread of its own: it blocks.
fn convert_with(blob: &[u8], first: FirstReads<'_>) -> (Vec<u8>, Converted) {
    let (pieces, receiver) = tokio::sync::mpsc::channel(2);
    pieces.try_send(Piece::Data(bytes::Bytes::copy_from_slice(blob))).unwrap();
    pieces.try_send(Piece::End).unwrap();
    let (scratch, out) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
    let reader = BlobReader::new(receiver, Algorithm::Sha256);
    let work = || layer::convert(reader, (scratch, &out), Algorithm::Sha256, first, &Limits::default()).unwrap();
    let converted = std::thread::scope(|scope| scope.spawn(work).join().unwrap());
    let mut image = vec![0; converted.parts.total() as usize];
    out.read_exact_at(&mut image, 0).unwrap();
    assert_eq!(out.metadata().unwrap().len(), converted.parts.total());
    assert_eq!(digest(&image), converted.image.as_str());
    let (metadata, limits) = (converted.parts.metadata, Limits::default());
    let checked = layer::check_image(&out, metadata, &converted.hash_root, &limits).unwrap();
    assert_eq!(checked.parts, converted.parts);
    (image, converted)
}

/// Data that becomes smaller, and is different everywhere.
fn text(length: usize) -> Vec<u8> {
    (0..).flat_map(|line: u64| format!("line {line}: a text\n").into_bytes()).take(length).collect()
}

/// Layers with files of every kind. The last one has compressed files.
fn layers() -> [Layer; 3] {
    let capability = [&0x0200_0000u32.to_le_bytes()[..], &[0; 16]].concat();
    let many = (0..400).map(|number| Entry::file(format!("many/file-{number}"), noise(number * 37)));
    let lower = [
        Entry::dir(".").mode(0o755),
        Entry::dir("etc").mode(0o751).owner(3, 4),
        Entry::file("etc/passwd", "root").mtime(1_600_000_000, 7),
        Entry::hard_link("also", "etc/passwd"),
        Entry::file("empty", ""),
        Entry::file("set-user-id", "x").mode(0o4755),
        Entry::file("ping", "x").xattr("security.capability", capability).xattr("user.b", "2").xattr("user.a", "1"),
        Entry::symlink("link", "etc/passwd"),
        Entry::symlink("long", "t".repeat(4000)),
        Entry::char_device("tty", 5, 1),
        Entry::block_device("disk", 8, 1),
        Entry::fifo("pipe"),
        Entry::dir("tmp").mode(0o1777),
        Entry::dir("many"),
        Entry::file("replaced", noise(9000)),
        Entry::file("replaced", "again"),
    ];
    let upper = [Entry::whiteout("empty"), Entry::opaque("etc"), Entry::dir("etc"), Entry::file("tmp/implied", "x")];
    // Sizes around those of blocks and chunks, and chunks that do not become smaller among others that do.
    let sizes = [4096, 4097, 8192, 8193, 131_071, 131_072, 131_073, 135_168, 135_169, 1_000_000];
    let texts = sizes.map(|size| Entry::file(format!("compressed/{size}"), text(size)));
    let mixed = [text(131_072), noise(131_072), text(200_000), noise(5000)].concat();
    let compressed = [
        Entry::dir("compressed"),
        Entry::file("compressed/mixed", mixed).xattr("user.a", "1"),
        Entry::file("compressed/zeros", vec![0; 300_000]),
        Entry::file("sparse", "abc").pax("GNU.sparse.size", "90000").pax("GNU.sparse.map", "70000,3"),
    ];
    let compressed = compressed.into_iter().chain(texts);
    [Layer::of(lower.into_iter().chain(many)), Layer::of(upper), Layer::of(compressed)]
}

pub fn original() -> Built {
    layers().into_iter().fold(Image::new(), Image::layer).build()
}

/// Files of the layers above, of which some parts are read first.
fn files_read() -> Vec<FileReads> {
    let file = |(path, parts): (&str, Range<usize>)| FileReads { path: path.into(), parts: [parts].into() };
    let files = [
        ("compressed/mixed", 1..3),
        ("nowhere", 0..1),
        ("compressed/8193", 0..1),
        ("many/file-300", 0..9),
        ("many", 0..1),
        ("also", 0..1),
    ];
    files.map(file).into()
}

/// An index of an image and its native form, whose layers `change` may change.
pub fn with_native(original: &Built, change: impl Fn(&mut Vec<u8>, &mut Value)) -> Built {
    with_converted(original, convert, change)
}

/// The same, converted like this.
fn with_converted(
    original: &Built,
    convert: impl Fn(&[u8]) -> (Vec<u8>, Converted),
    change: impl Fn(&mut Vec<u8>, &mut Value),
) -> Built {
    let (mut blobs, mut layers) = (Vec::new(), Vec::new());
    for (_, blob) in &original.blobs[..original.diff_ids.len()] {
        let (mut image, converted) = convert(blob);
        let mut descriptor = json!({
            "mediaType": "application/vnd.erofs.layer.v1",
            "annotations": {
                "org.oci-rs.native.metadata": converted.parts.metadata.to_string(),
                "org.oci-rs.native.verity": format!("sha256:{}", hex::encode(converted.hash_root)),
            },
        });
        change(&mut image, &mut descriptor);
        descriptor["digest"] = json!(digest(&image));
        descriptor["size"] = json!(image.len());
        layers.push(descriptor);
        blobs.push((digest(&image), image));
    }
    let mut config: Value = serde_json::from_slice(&original.blobs.last().unwrap().1).unwrap();
    config["os.features"] = json!(["erofs"]);
    config["rootfs"]["diff_ids"] = blobs.iter().map(|(digest, _)| json!(digest)).collect();
    let config = config.to_string().into_bytes();
    let manifest_type = "application/vnd.oci.image.manifest.v1+json";
    let manifest = json!({
        "schemaVersion": 2, "mediaType": manifest_type, "layers": layers,
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest(&config), "size": config.len(),
        },
    });
    let manifest = Document::new(manifest_type, manifest.to_string());
    let mut built = Built::index(std::slice::from_ref(original), true);
    let index = built.manifests.pop().unwrap();
    let mut entries: Value = serde_json::from_slice(&index.bytes).unwrap();
    let mut platform = entries["manifests"][1]["platform"].clone();
    platform["os.features"] = json!(["erofs"]);
    entries["manifests"].as_array_mut().unwrap().push(json!({
        "mediaType": manifest_type, "digest": manifest.digest(), "size": manifest.bytes.len(), "platform": platform,
        "annotations": {"org.oci-rs.native": "2"},
    }));
    built.blobs.extend(blobs);
    built.blobs.push((digest(&config), config));
    built.manifests.extend([manifest, Document::new(&index.media_type, entries.to_string())]);
    built
}

/// An image of [`with_native`] in which manifest and config are part of their descriptors, as text of `encode`.
fn with_documents(mut built: Built, encode: impl Fn(&[u8]) -> String) -> Built {
    let (index, manifest) = (built.manifests.pop().unwrap(), built.manifests.pop().unwrap());
    let (_, config) = built.blobs.last().unwrap();
    let mut document: Value = serde_json::from_slice(&manifest.bytes).unwrap();
    document["config"]["data"] = json!(encode(config));
    let manifest = Document::new(&manifest.media_type, document.to_string());
    let mut document: Value = serde_json::from_slice(&index.bytes).unwrap();
    let entry = document["manifests"].as_array_mut().unwrap().last_mut().unwrap();
    entry["annotations"]["org.oci-rs.native.manifest"] = json!(encode(&manifest.bytes));
    (entry["digest"], entry["size"]) = (json!(manifest.digest()), json!(manifest.bytes.len()));
    built.manifests.extend([manifest, Document::new(&index.media_type, document.to_string())]);
    built
}

pub fn manifest_of_archives(built: &Built) -> String {
    built.manifests[0].digest()
}

pub fn native_manifest(built: &Built) -> String {
    built.manifests[1].digest()
}

/// The files of a layer that containers see: no marks, and no times of directories that no entry describes.
fn visible(layer: &Path) -> Vec<(String, String)> {
    let implied = ["tmp", ""];
    let all = describe(layer).into_iter().filter(|(_, line)| !line.contains("device 0 "));
    let without_times = |(path, line): (String, String)| {
        let words = line.split(' ').enumerate().filter(|(at, _)| !(*at == 2 && implied.contains(&path.as_str())));
        let line = words.map(|(_, word)| word).collect::<Vec<_>>().join(" ");
        (path, line.replace("trusted.overlay.implied=79", ""))
    };
    all.map(without_times).collect()
}

/// Runs a program that knows the format. Returns false, with a message, if it is not installed.
pub fn agrees(program: &str, arguments: &[&str]) -> bool {
    match Command::new(program).args(arguments).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            missing(program);
            false
        }
        output => {
            let output = output.unwrap();
            assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
            true
        }
    }
}

/// Whether fsck.erofs decompresses zstd, as that of erofs-utils 1.8. Prints the reason of a skipped check.
#[allow(clippy::print_stdout, reason = "a skipped test says why")]
fn checks_zstd() -> bool {
    let output = Command::new("fsck.erofs").arg("-V").output();
    let said = output.map(|output| [output.stdout, output.stderr].concat()).unwrap_or_default();
    let knows = String::from_utf8_lossy(&said).contains("zstd");
    if !knows {
        println!("skipped: this fsck.erofs does not know zstd");
    }
    knows
}

#[test]
fn a_layer_has_one_native_image_that_other_programs_accept() {
    for (number, layer) in layers().iter().enumerate() {
        let (image, converted) = convert(&layer.blob());
        let (again, _) = convert(layer.tar());
        assert!(image == again, "the compression plays no role");
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), &image).unwrap();
        let path = file.path().to_str().unwrap();
        // The last layer is compressed. The kernel reads it too, in the next test.
        if number < 2 || checks_zstd() {
            agrees("fsck.erofs", &[path]);
        }
        let (bytes, archive) = (image.len(), layer.tar().len());
        assert!(number < 2 || bytes < archive / 3, "{bytes} of {archive} bytes");
        let (root, offset) = (hex::encode(converted.hash_root), converted.parts.file_system().to_string());
        agrees("veritysetup", &["verify", path, path, &root, "--hash-offset", &offset]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_mounts_images_takes_the_native_one_and_shows_the_same_files() {
    let Some(bench) = Bench::in_images() else { return };
    let original = original();
    let built = with_native(&original, |_, _| ());
    let native = bench.pull(&bench.push("team/app:1", &built)).await.unwrap();
    assert_eq!(native.digest, native_manifest(&built));
    let archives = bench.pull(&bench.push("team/other:1", &original)).await.unwrap();
    assert_eq!(native.layers.len(), archives.layers.len());
    for (native, archive) in native.layers.iter().zip(&archives.layers) {
        assert_eq!(visible(native), visible(archive));
    }
    let found = image_store::fsck(&bench.root(), &image_store::FsckOptions { repair: false, owners: None }).unwrap();
    assert!(found.is_sound(), "{found:?}");
}

#[test]
fn the_data_that_is_read_first_precedes_the_other_data_if_it_shall() {
    for (number, layer) in layers().iter().enumerate() {
        let (plain, unread) = convert(&layer.blob());
        let files = files_read();
        let kept = convert_with(&layer.blob(), FirstReads { files: &files, reorder: false });
        assert!(kept.0 == plain, "the same image");
        let (image, converted) = convert_with(&layer.blob(), FirstReads { files: &files, reorder: true });
        assert_eq!(converted.parts, unread.parts);
        let bytes = |ranges: &[Range<u64>]| ranges.iter().map(|range| range.end - range.start).sum::<u64>();
        assert_eq!(bytes(&converted.first), bytes(&kept.1.first));
        let metadata = converted.parts.metadata;
        match number {
            // One block of `etc/passwd`, and three of a file of 300 * 37 bytes.
            0 => assert_eq!(converted.first, [Range { start: metadata, end: metadata + 4 * 4096 }]),
            1 => assert_eq!(converted.first, []),
            // The first part of the first file is not read.
            _ => assert!(converted.first[0].start > metadata),
        }
        assert_eq!((image == plain, converted.reordered), (number == 1, number != 1), "a layer without these files");
        let known = layer::files_read(&image[..metadata as usize], &converted.first, &Limits::default()).unwrap();
        let before = layer::files_read(&plain[..metadata as usize], &kept.1.first, &Limits::default()).unwrap();
        let sorted = |mut files: Vec<FileReads>| {
            files.sort_by(|one, other| one.path.cmp(&other.path));
            files
        };
        assert_eq!((known.0, sorted(known.1)), (before.0, sorted(before.1)));
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), &image).unwrap();
        let path = file.path().to_str().unwrap();
        if number < 2 || checks_zstd() {
            agrees("fsck.erofs", &[path]);
        }
        let (root, offset) = (hex::encode(converted.hash_root), converted.parts.file_system().to_string());
        agrees("veritysetup", &["verify", path, path, &root, "--hash-offset", &offset]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_in_the_order_of_its_first_reads_shows_the_same_files() {
    let Some(bench) = Bench::in_images() else { return };
    let (original, files) = (original(), files_read());
    let reordered = |blob: &[u8]| convert_with(blob, FirstReads { files: &files, reorder: true });
    let built = with_converted(&original, reordered, |_, _| ());
    let native = bench.pull(&bench.push("team/app:1", &built)).await.unwrap();
    assert_eq!(native.digest, native_manifest(&built));
    let archives = bench.pull(&bench.push("team/other:1", &original)).await.unwrap();
    for (native, archive) in native.layers.iter().zip(&archives.layers) {
        assert_eq!(visible(native), visible(archive));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_its_descriptor_holds_is_not_asked_for() {
    let Some(bench) = Bench::in_images() else { return };
    let base64 = |document: &[u8]| base64::engine::general_purpose::STANDARD.encode(document);
    let built = with_documents(with_native(&marked(), |_, _| ()), base64);
    let other = with_documents(with_native(&marked(), |_, _| ()), |document| base64(&[document, b" "].concat()));
    // Another document than the descriptor names only costs the request that it was to save.
    for (name, built, requests) in [("right", &built, 0), ("other", &other, 1)] {
        bench.registry.forget_requests();
        let image = bench.pull(&bench.push(&format!("team/{name}:1"), built)).await.unwrap();
        assert_eq!(image.digest, native_manifest(built));
        let (config, _) = built.blobs.last().unwrap();
        let asked = [&native_manifest(built), config].map(|digest| bench.registry.count(digest));
        assert_eq!(asked, [requests; 2], "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_layers_in_directories_takes_the_archives() {
    let bench = Bench::in_directories();
    let built = with_native(&original(), |_, _| ());
    let image = bench.pull(&bench.push("team/app:1", &built)).await.unwrap();
    assert_eq!(image.digest, manifest_of_archives(&built));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_mounts_images_no_longer_takes_the_archives() {
    let Some(bench) = Bench::in_images() else { return };
    let built = with_native(&original(), |_, _| ());
    let reference = bench.push("team/app:1", &built);
    bench.pull(&reference).await.unwrap();
    let changed = StoreConfig { layers: LayerFormat::Directory, ..config(&bench.root()) };
    let bench = Bench { store: Store::open(changed).unwrap(), ..bench };
    let image = bench.pull(&reference).await.unwrap();
    assert_eq!(image.digest, manifest_of_archives(&built));
    assert!(image.layers.iter().all(|layer| layer.is_dir()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_kernel_does_not_decompress_takes_the_archives() {
    let Some(bench) = Bench::in_images() else { return };
    let built = with_native(&original(), |_, _| ());
    let changed = StoreConfig { layers: LayerFormat::Erofs { zstd: false }, ..config(&bench.root()) };
    let bench = Bench { store: Store::open(changed).unwrap(), ..bench };
    let image = bench.pull(&bench.push("team/app:1", &built)).await.unwrap();
    assert_eq!(image.digest, manifest_of_archives(&built));
    let pinned = bench.registry.reference(&format!("team/app@{}", native_manifest(&built)));
    let problem = bench.pull(&pinned).await.unwrap_err().to_string();
    assert!(problem.contains("CONFIG_EROFS_FS_ZIP_ZSTD"), "{problem}");
}

type Change = fn(&mut Vec<u8>, &mut Value);

/// What an image may have that our writer did not make.
const CHANGES: [(&str, Change); 8] = [
    ("a socket", |image, _| image[4096 + 64 + 5] = 0xc0),
    ("another magic number", |image, _| image[1024] ^= 1),
    ("an unknown feature", |image, _| image[1024 + 80] |= 0x40),
    ("a reserved byte", |image, _| image[5] = 1),
    ("a byte of the hash tree", |image, _| *image.last_mut().unwrap() = 1),
    ("more bytes", |image, _| image.extend([0; 4096])),
    ("fewer bytes", |image, _| image.truncate(image.len() - 4096)),
    ("another root", |_, layer| layer["annotations"]["org.oci-rs.native.verity"] = json!(digest(b"x"))),
];

/// Pulls an image, and returns the reasons for which a native form was refused.
async fn pull_noting(bench: &Bench, reference: &str) -> (Result<image_store::Image, PullError>, Vec<String>) {
    let noted = Arc::new(Noted::default());
    let pulled = bench.store.acquire(request(reference), "task", Arc::clone(&noted) as Arc<dyn Progress>).await;
    let refusals = noted.0.lock().unwrap().clone();
    (pulled, refusals)
}

/// Collects the refusals of a pull.
#[derive(Default)]
struct Noted(Mutex<Vec<String>>);

impl Progress for Noted {
    fn report(&self, event: PullEvent) {
        if let PullEvent::NativeRefused { problem } = event {
            self.0.lock().unwrap().push(problem);
        }
    }
}

/// An image of one layer with a marker.
fn marked() -> Built {
    Image::new().layer(Layer::of([Entry::dir("etc"), Entry::file("etc/marker", "x")])).build()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_our_writer_did_not_make_is_refused() {
    let Some(bench) = Bench::in_images() else { return };
    for (at, (what, change)) in CHANGES.into_iter().enumerate() {
        let built = with_native(&marked(), change);
        bench.push(&format!("team/app-{at}:1"), &built);
        // The manifest itself is named, so there is no other.
        let own = bench.registry.reference(&format!("team/app-{at}@{}", native_manifest(&built)));
        let (error, refusals) = pull_noting(&bench, &own).await;
        let error = error.expect_err(what);
        assert!(!error.recoverable() && refusals.is_empty(), "{what}: {error} {refusals:?}");
        bench.assert_clean();
        assert_eq!(bench.layer_count(), 0, "{what}");
    }
    let whole = with_native(&marked(), |_, _| ());
    let pulled = bench.pull(&bench.push("team/app:whole", &whole)).await.unwrap();
    assert_eq!(fs::read(shown(&pulled.layers[0]).join("etc/marker")).unwrap(), b"x");
}

/// The digest proves the data of a layer that is pulled whole. The hashes of the tree are for layers that are not.
#[tokio::test(flavor = "multi_thread")]
async fn a_whole_layer_is_verified_by_its_digest_alone() {
    let Some(bench) = Bench::in_images() else { return };
    let data = |image: &mut Vec<u8>, layer: &mut Value| {
        let metadata: usize = layer["annotations"]["org.oci-rs.native.metadata"].as_str().unwrap().parse().unwrap();
        image[metadata] ^= 1;
    };
    let built = with_native(&marked(), data);
    let image = bench.pull(&bench.push("team/app:1", &built)).await.unwrap();
    assert_eq!(image.digest, native_manifest(&built));
    assert_eq!(fs::read(shown(&image.layers[0]).join("etc/marker")).unwrap(), b"y");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_original_replaces_a_native_image_that_is_refused() {
    let Some(bench) = Bench::in_images() else { return };
    let more: [(&str, Change); 2] = [
        ("more metadata", |_, layer| layer["annotations"]["org.oci-rs.native.metadata"] = json!("40960000")),
        ("no annotations", |_, layer| layer["annotations"] = json!({})),
    ];
    for (at, (what, change)) in CHANGES.into_iter().chain(more).enumerate() {
        let built = with_native(&marked(), change);
        let name = bench.push(&format!("team/app:{at}"), &built);
        let (image, refusals) = pull_noting(&bench, &name).await;
        let image = image.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(image.digest, manifest_of_archives(&built), "{what}");
        assert_eq!(fs::read(shown(&image.layers[0]).join("etc/marker")).unwrap(), b"x");
        let layer = &built.blobs[built.blobs.len() - 2].0;
        let [refusal] = &refusals[..] else { panic!("{what}: {refusals:?}") };
        assert!(what == "no annotations" || refusal.contains(layer), "{what}: {refusal}");
        // The node keeps the original, and does not try the native image again.
        bench.registry.forget_requests();
        let forced = PullRequest { force: true, ..request(&name) };
        let again = bench.store.acquire(forced, "task", Arc::new(Silent)).await.unwrap();
        assert_eq!((again.digest, bench.registry.count("/blobs/")), (image.digest, 0), "{what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_original_replaces_a_native_image_with_a_part_that_is_damaged_or_missing() {
    let Some(bench) = Bench::in_images() else { return };
    let built = with_native(&marked(), |_, _| ());
    let (layer, config) = (built.blobs[built.blobs.len() - 2].clone(), built.blobs.last().unwrap().clone());
    let zeros = |length: usize| Action::Body(vec![b' '; length]);
    let missing = || Action::Status(404, Vec::new());
    let manifest = native_manifest(&built);
    for (at, (path, action)) in [
        (&layer.0, zeros(layer.1.len())),
        (&layer.0, missing()),
        (&config.0, zeros(config.1.len())),
        (&config.0, missing()),
        (&manifest, zeros(2)),
        (&manifest, missing()),
    ]
    .into_iter()
    .enumerate()
    {
        let what = format!("{path} {action:?}");
        let name = bench.push(&format!("team/app:{at}"), &built);
        bench.registry.fault(Fault::on(path, action));
        let (image, refusals) = pull_noting(&bench, &name).await;
        assert_eq!(image.unwrap().digest, manifest_of_archives(&built), "{what}");
        assert!(refusals.len() == 1 && refusals[0].contains(path.as_str()), "{what}: {refusals:?}");
        bench.registry.heal();
    }
    // A registry that has a problem of its own is asked again later.
    let name = bench.push("team/app:busy", &built);
    bench.registry.fault(Fault::on(&layer.0, Action::Status(503, Vec::new())));
    let (error, refusals) = pull_noting(&bench, &name).await;
    assert!(error.unwrap_err().recoverable() && refusals.is_empty(), "{refusals:?}");
    bench.registry.heal();
    assert_eq!(pull_noting(&bench, &name).await.0.unwrap().digest, manifest);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_without_an_original_gives_the_refusal() {
    let Some(bench) = Bench::in_images() else { return };
    let mut built = with_native(&marked(), |image, _| image[5] = 1);
    let index = built.manifests.pop().unwrap();
    let mut entries: Value = serde_json::from_slice(&index.bytes).unwrap();
    let list = entries["manifests"].as_array_mut().unwrap();
    list.drain(..list.len() - 1);
    built.manifests.push(Document::new(&index.media_type, entries.to_string()));
    let (error, refusals) = pull_noting(&bench, &bench.push("team/app:1", &built)).await;
    let error = error.unwrap_err();
    assert!(matches!(error, PullError::Layer { .. }) && refusals.is_empty(), "{error} {refusals:?}");
    bench.assert_clean();
}
