//! Vulnerabilities of other image tools, one test each. `docs/image-cves.md` is the list, also of those tested
//! elsewhere.

use std::{
    fs,
    os::unix::{fs::MetadataExt, process::CommandExt},
    path::{Path, PathBuf},
    process::Command,
};

use fixtures::{
    image::{Document, Entry, Image, Layer, archive, pax_record},
    registry::{Action, Fault, Registry},
};
use image_store::PullError;
use serde_json::{Value, json};

use crate::common::{Bench, small, xattrs};

/// A file of the host that no layer may change.
struct Victim {
    directory: tempfile::TempDir,
    before: String,
}

impl Victim {
    fn new() -> Victim {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("file"), "victim").unwrap();
        let mut victim = Victim { directory, before: String::new() };
        victim.before = victim.look();
        victim
    }

    fn directory(&self) -> String {
        self.directory.path().display().to_string()
    }

    fn file(&self) -> String {
        format!("{}/file", self.directory())
    }

    fn look(&self) -> String {
        let mut seen = String::new();
        for path in [self.directory.path().to_owned(), self.directory.path().join("file")] {
            let meta = fs::symlink_metadata(&path).unwrap();
            let content = if meta.is_file() { fs::read_to_string(&path).unwrap() } else { String::new() };
            let time = (meta.mtime(), meta.mtime_nsec());
            seen += &format!(
                "{path:?} {:o} {}:{} {time:?} {} {} {content}\n",
                meta.mode(),
                meta.uid(),
                meta.gid(),
                meta.nlink(),
                xattrs(&path)
            );
        }
        seen
    }

    fn assert_untouched(&self) {
        assert_eq!(self.look(), self.before);
    }
}

/// Checks that the entries are unpacked inside the layer or refused.
async fn stays_inside(entries: impl Fn(&str, &str) -> Vec<Entry>) {
    let victim = Victim::new();
    let up = "../".repeat(12);
    let relative = |path: String| format!("{up}{}", path.trim_start_matches('/'));
    for (directory, file) in
        [(victim.directory(), victim.file()), (relative(victim.directory()), relative(victim.file()))]
    {
        let bench = Bench::new();
        if let Err(error) = bench.unpack(entries(&directory, &file)).await {
            assert!(matches!(error, PullError::Layer { .. }) && !error.recoverable(), "{error}");
        } else {
            bench.store.release("task").unwrap();
        }
        victim.assert_untouched();
        bench.assert_clean();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cve_2014_6407_links_of_an_image_lead_to_the_host() {
    stays_inside(|_, file| vec![Entry::symlink("l", file), Entry::file("l", "new").mode(0o777).owner(7, 7)]).await;
    stays_inside(|_, file| vec![Entry::hard_link("l", file), Entry::file("l", "new")]).await;
    stays_inside(|directory, _| vec![Entry::symlink("l", directory), Entry::file("l/file", "new")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cve_2018_15664_a_directory_becomes_a_link_halfway() {
    stays_inside(|directory, _| {
        vec![
            Entry::dir("d"),
            Entry::file("d/first", ""),
            Entry::symlink("d", directory),
            Entry::file("d/file", "new"),
            Entry::whiteout("d/file"),
            Entry::opaque("d"),
        ]
    })
    .await;
    stays_inside(|directory, _| {
        vec![
            Entry::dir("a/b"),
            Entry::symlink("x", "a"),
            Entry::symlink("a/b", directory),
            Entry::file("x/b/file", "new"),
        ]
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rustsec_2018_0002_writing_through_a_hard_link() {
    let bench = Bench::new();
    let entries = [Entry::file("f", "old"), Entry::hard_link("h", "f"), Entry::file("h", "new").mode(0o4777)];
    let image = bench.unpack(entries).await.unwrap();
    assert_eq!(fs::read_to_string(image.layers[0].join("f")).unwrap(), "old");
    assert_eq!(fs::metadata(image.layers[0].join("f")).unwrap().mode() & 0o7777, 0o644);
}

#[tokio::test(flavor = "multi_thread")]
async fn cve_2021_32760_mode_and_owner_through_a_link() {
    stays_inside(|_, file| vec![Entry::hard_link("h", file).mode(0o4777).owner(7, 7).xattr("user.a", "1")]).await;
    stays_inside(|_, file| {
        vec![Entry::symlink("l", file).mode(0o777).owner(7, 7).mtime(1, 1), Entry::hard_link("h", "l").mode(0o4777)]
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cve_2026_33056_attributes_of_a_directory_through_a_link() {
    stays_inside(|directory, _| vec![Entry::symlink("l", directory), Entry::dir("l").mode(0o777).owner(7, 7)]).await;
    stays_inside(|directory, _| {
        vec![Entry::dir("l").mode(0o777).owner(7, 7).xattr("user.a", "1"), Entry::symlink("l", directory)]
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cve_2025_47290_a_thread_has_the_layer_as_its_root() {
    // The attributes of files that cannot be opened are set by name, and every name is inside the layer.
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    stays_inside(|directory, file| {
        vec![
            Entry::symlink("d", directory),
            Entry::symlink("d/file", file).xattr("security.capability", capability),
            Entry::fifo("d/pipe").xattr("security.capability", capability).mode(0o4777),
        ]
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cve_2026_50163_a_hard_link_is_looked_up_in_the_working_directory() {
    let here = tempfile::NamedTempFile::new_in(".").unwrap();
    let name = here.path().file_name().unwrap().to_str().unwrap().to_owned();
    let error = Bench::new().unpack([Entry::hard_link("l", name)]).await.unwrap_err();
    assert!(error.to_string().contains("does not have"), "{error}");
    assert_eq!(here.as_file().metadata().unwrap().nlink(), 1);
}

/// The code that pulls and unpacks starts no program, so it cannot use a program, a library or a name service of an
/// image.
#[test]
fn cve_2019_14271_unpacking_starts_no_program() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for module in ["../layer/src", "src/archive", "src/pull", "src/store", "src/registry"] {
        let mut open = vec![root.join(module)];
        while let Some(directory) = open.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    open.push(path);
                    continue;
                }
                let text = fs::read_to_string(&path).unwrap();
                // This module resolves the names to which a registry redirects. It reads no image.
                let resolves_names = path.ends_with("registry/guard.rs");
                for word in ["process::Command", "Command::new", "dlopen", "getpwnam", "lookup_host"] {
                    let allowed = word == "lookup_host" && resolves_names;
                    assert!(allowed || !text.contains(word), "{word} in {}", path.display());
                }
            }
        }
    }
}

fn header(name: &str, kind: u8, size: u64) -> Vec<u8> {
    let mut header = tar::Header::new_ustar();
    header.as_old_mut().linkflag = [kind];
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(size);
    header.set_cksum();
    header.as_bytes().to_vec()
}

/// Two sizes for one entry: a reader that uses the wrong one reads file content as entries.
#[tokio::test(flavor = "multi_thread")]
async fn cve_2025_62518_the_size_of_pax_counts() {
    let inner = archive([Entry::file("smuggled", "x")]);
    for stated in [0, 512] {
        let record = pax_record("size", inner.len().to_string().as_bytes());
        let mut tar = header("pax", b'x', record.len() as u64);
        tar.extend(&record);
        tar.resize(tar.len().next_multiple_of(512), 0);
        tar.extend(header("inner.tar", b'0', stated));
        tar.extend(&inner);
        tar.extend([0; 1024]);
        let bench = Bench::new();
        let image = bench.unpack_layers([Layer::raw(tar)]).await.unwrap();
        assert!(!image.layers[0].join("smuggled").exists());
        assert_eq!(fs::read(image.layers[0].join("inner.tar")).unwrap(), inner);
    }
}

/// A size on an entry without data: readers that skip the data and readers that do not see different entries.
#[tokio::test(flavor = "multi_thread")]
async fn rustsec_2026_0145_sizes_of_entries_without_data() {
    for kind in *b"12345" {
        let mut tar = header("odd", kind, 512);
        tar[157] = b'x';
        tar[148..156].fill(b' ');
        let sum: u32 = tar.iter().map(|byte| u32::from(*byte)).sum();
        tar[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        let entry = archive([Entry::file("x", "the target"), Entry::file("next", "seen")]);
        let layer = Layer::raw([&entry[..1024], &tar, &entry[1024..]].concat());
        let bench = Bench::new();
        let image = bench.unpack_layers([layer]).await.unwrap();
        assert_eq!(fs::read_to_string(image.layers[0].join("next")).unwrap(), "seen", "kind {}", char::from(kind));
    }
}

async fn manifest(bench: &Bench, name: &str, document: Value) -> PullError {
    let mut built = small("x");
    built.manifests = vec![Document::new("application/vnd.oci.image.manifest.v1+json", document.to_string())];
    let reference = bench.push(name, &built);
    bench.pull(&reference).await.unwrap_err()
}

fn honest() -> Value {
    serde_json::from_slice(&small("x").top().bytes).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn cve_2021_41190_a_document_that_is_two_things() {
    let bench = Bench::new();
    let mut both = honest();
    both["manifests"] = json!([both["config"]]);
    let mut other = honest();
    other["mediaType"] = json!("application/vnd.oci.image.index.v1+json");
    let mut first_schema = honest();
    first_schema["fsLayers"] = json!([]);
    for (document, reason) in [(both, "at once"), (other, "does not fit"), (first_schema, "schema 1")] {
        let error = manifest(&bench, "two:1", document).await;
        assert!(error.to_string().contains(reason) && !error.recoverable(), "{error}");
    }
    // A duplicate key: readers differ in the one that they use.
    let text = String::from_utf8(small("x").top().bytes.clone()).unwrap();
    let twice = text.replacen('{', r#"{"layers":[],"#, 1);
    let mut built = small("x");
    built.manifests = vec![Document::new("application/json", twice)];
    let error = bench.pull(&bench.push("twice:1", &built)).await.unwrap_err();
    assert!(error.to_string().contains("duplicate"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn cve_2024_3727_a_digest_that_is_no_digest() {
    let bench = Bench::new();
    let right = honest()["config"]["digest"].as_str().unwrap().to_owned();
    for wrong in [
        "sha256:../../../../etc/passwd",
        "md5:d41d8cd98f00b204e9800998ecf8427e",
        "sha256:",
        "",
        &right.to_uppercase(),
        &format!("{right}/.."),
        &format!("{right}?x"),
    ] {
        for place in ["config", "layer"] {
            let mut document = honest();
            let slot = if place == "config" { &mut document["config"] } else { &mut document["layers"][0] };
            slot["digest"] = json!(wrong);
            let error = manifest(&bench, "digest:1", document).await;
            assert!(error.to_string().contains("invalid digest") && !error.recoverable(), "{wrong}: {error}");
        }
    }
    assert_eq!(bench.registry.count("/blobs/"), 0, "nothing is asked for by such a name");
}

#[tokio::test(flavor = "multi_thread")]
async fn cve_2020_1702_documents_without_end() {
    let bench = Bench::new();
    let reference = bench.push("app:1", &small("x"));
    for path in ["/manifests/", "/blobs/"] {
        bench.registry.heal();
        bench.registry.fault(Fault::on(path, Action::Endless));
        let error = bench.pull(&reference).await.unwrap_err();
        assert!(!error.recoverable(), "{error}");
    }
    bench.registry.heal();
    let mut large = honest();
    large["annotations"] = json!({"x": "x".repeat(5 << 20)});
    let error = manifest(&bench, "large:1", large).await;
    assert!(matches!(error, PullError::TooLarge { .. }), "{error}");
    let mut config = honest();
    config["config"]["size"] = json!(u64::MAX);
    let error = manifest(&bench, "config:1", config).await;
    assert!(matches!(error, PullError::TooLarge { .. }), "{error}");
    let index = json!({"schemaVersion": 2, "manifests": vec![honest()["config"].clone(); 1001]});
    let error = manifest(&bench, "index:1", index).await;
    assert!(matches!(error, PullError::TooLarge { .. }), "{error}");
}

/// Sizes whose sum overflows.
#[tokio::test(flavor = "multi_thread")]
async fn sizes_near_the_end_of_the_number_line() {
    let bench = Bench::new();
    let built = Image::new().layer(Layer::of([Entry::dir("a")])).layer(Layer::of([Entry::dir("b")])).build();
    let text = String::from_utf8(built.top().bytes.clone()).unwrap();
    let mut document: Value = serde_json::from_str(&text).unwrap();
    for layer in document["layers"].as_array_mut().unwrap() {
        layer["size"] = json!(u64::MAX);
    }
    let mut lying = built.clone();
    lying.manifests = vec![Document::new("application/json", document.to_string())];
    let error = bench.pull(&bench.push("sizes:1", &lying)).await.unwrap_err();
    assert!(error.to_string().contains("space") || error.to_string().contains("size"), "{error}");
    bench.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn cve_2020_15157_urls_of_a_manifest_are_not_asked() {
    let bench = Bench::new();
    let other = Registry::start();
    let built = small("foreign");
    other.push("app:1", &built);
    let mut document: Value = serde_json::from_slice(&built.top().bytes).unwrap();
    let blob = built.blobs[0].0.clone();
    for place in ["config", "layer"] {
        let slot = if place == "config" { &mut document["config"] } else { &mut document["layers"][0] };
        slot["urls"] = json!([format!("http://{}/v2/app/blobs/{blob}", other.host())]);
    }
    document["layers"][0]["mediaType"] = json!("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip");
    let mut foreign = built.clone();
    foreign.manifests = vec![Document::new("application/json", document.to_string())];
    let reference = bench.push("foreign:1", &foreign);
    bench.registry.fault(Fault::on(&blob, Action::Status(404, Vec::new())));
    let error = bench.pull(&reference).await.unwrap_err();
    assert!(matches!(error, PullError::NotFound { .. }), "{error}");
    assert_eq!(other.requests().len(), 0);
}

/// Setuid programs in the store must not be reachable for users of the node.
#[tokio::test(flavor = "multi_thread")]
async fn cve_2021_41091_local_users_reach_no_layer() {
    let bench = Bench::new();
    let image = bench.unpack([Entry::file("su", "#!/bin/sh\n").mode(0o4755)]).await.unwrap();
    // The directory around the store is private only because it is temporary.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(bench.directory.path(), open).unwrap();
    let su = image.layers[0].join("su");
    for (program, argument) in [("cat", su.clone()), ("ls", image.layers[0].clone()), ("ls", bench.root())] {
        let output = Command::new(program).arg(&argument).uid(65534).gid(65534).output().unwrap();
        assert!(!output.status.success() && output.stdout.is_empty(), "{program} {}", argument.display());
    }
    assert!(Command::new("cat").arg(&su).output().unwrap().status.success());
}

fn functions(directory: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            functions(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let name = |line: &str| {
                line.split_once("fn ").map(|(_, rest)| rest.split('(').next().unwrap_or_default().to_owned())
            };
            found.extend(text.lines().filter_map(name));
        }
    }
}

#[test]
fn the_list_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let text = fs::read_to_string(root.join("docs/image-cves.md")).unwrap();
    let mut known = Vec::new();
    let directories = [
        "layer/src",
        "image-store/src",
        "image-store/tests",
        "runtime/src",
        "runtime/tests",
        "driver/src",
        "tests/tests",
    ];
    directories
        .iter()
        .map(|directory| root.join(directory))
        .for_each(|directory: PathBuf| functions(&directory, &mut known));
    let mut named = 0;
    let list = text.split("\n## ").next().unwrap();
    for item in list.split("\n- ").skip(1) {
        let (_, tests) = item.split_once("Test").unwrap_or_else(|| panic!("an item without a test: {item}"));
        for test in tests.split('`').skip(1).step_by(2) {
            assert!(known.iter().any(|known| known == test), "docs/image-cves.md names {test}, which is no test");
            named += 1;
        }
    }
    assert!(named > 30, "{named}");
    let unlisted: Vec<_> =
        known.iter().filter(|name| name.starts_with("cve_") && !text.contains(&format!("`{name}`"))).collect();
    assert!(unlisted.is_empty(), "not in docs/image-cves.md: {unlisted:?}");
}
