//! One kind of damage at a time in an intact store: the check reports exactly this damage, the repair removes it, and
//! the image can be pulled and used again.

mod layers;
mod users;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink},
    path::{Path, PathBuf},
};

use fixtures::image::{Entry, Image, Layer, digest};
use image_store::{Finding, FindingKind, FsckOptions, FsckReport, Outcome, Severity, fsck};

use crate::common::{Bench, Shown, describe};

const REPAIR: FsckOptions = FsckOptions { repair: true, owners: None };

fn check(bench: &Bench) -> FsckReport {
    fsck(&bench.root(), &FsckOptions::default()).unwrap()
}

fn repair(bench: &Bench) -> FsckReport {
    fsck(&bench.root(), &REPAIR).unwrap()
}

fn kinds(report: &FsckReport) -> Vec<FindingKind> {
    report.findings.iter().map(|finding| finding.kind).collect()
}

fn app() -> fixtures::image::Built {
    let base = Layer::of([
        Entry::dir("."),
        Entry::dir("etc"),
        Entry::file("etc/marker", "base"),
        Entry::symlink("etc/link", "marker"),
        Entry::dir("tmp").mode(0o1777),
    ]);
    Image::new()
        .layer(base)
        .layer(Layer::of([Entry::dir("."), Entry::dir("srv"), Entry::file("srv/app", "app")]))
        .build()
}

/// A store with one unused image.
struct Good {
    bench: Bench,
    reference: String,
    trees: Vec<BTreeMap<String, String>>,
}

impl Good {
    async fn new() -> Self {
        Self::on(Bench::in_directories()).await
    }

    async fn on(bench: Bench) -> Self {
        let reference = bench.push("app:1", &app());
        let image = bench.pull(&reference).await.unwrap();
        let trees = image.layers.iter().map(|layer| describe(layer)).collect();
        bench.store.sync().unwrap();
        let report = check(&bench);
        assert_eq!((report.images, report.layers, report.layers_not_compared), (1, 2, 0));
        assert_eq!(report.findings, [], "with its lease");
        bench.store.release("task").unwrap();
        assert_eq!(check(&bench).findings, []);
        Self { bench, reference, trees }
    }

    fn only(&self, directory: &str) -> PathBuf {
        let mut paths: Vec<PathBuf> =
            fs::read_dir(self.bench.root().join(directory)).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths.remove(0)
    }

    /// Pulls again, and checks that the store is intact.
    async fn usable(&self) {
        let image = self.bench.pull(&self.reference).await.unwrap();
        let trees: Vec<_> = image.layers.iter().map(|layer| describe(layer)).collect();
        assert_eq!(trees, self.trees);
        self.bench.store.sync().unwrap();
        let report = check(&self.bench);
        assert_eq!((report.findings.as_slice(), report.layers_not_compared), (&[][..], 0));
        self.bench.store.release("task").unwrap();
    }
}

/// Makes one damage; returns the finding.
async fn broken(expected: FindingKind, break_it: impl FnOnce(&Good) -> PathBuf) -> Finding {
    broken_on(Bench::in_directories(), expected, break_it).await
}

async fn broken_on(bench: Bench, expected: FindingKind, break_it: impl FnOnce(&Good) -> PathBuf) -> Finding {
    let good = Good::on(bench).await;
    let path = break_it(&good);
    let report = check(&good.bench);
    assert_eq!(kinds(&report), [expected], "{report:?}");
    assert_eq!(report.findings[0].path, path);
    assert!(matches!(report.findings[0].outcome, Outcome::Repairable(_)), "{report:?}");
    assert_eq!(report.is_sound(), expected.severity() != Severity::Damage);
    // A check without repair changes nothing.
    assert_eq!(check(&good.bench), report);
    let repaired = repair(&good.bench);
    assert_eq!(kinds(&repaired), [expected]);
    assert!(matches!(repaired.findings[0].outcome, Outcome::Repaired(_)) && repaired.is_sound(), "{repaired:?}");
    assert_eq!(check(&good.bench).findings, []);
    good.usable().await;
    report.findings.into_iter().next().unwrap()
}

fn edit(path: &Path, change: impl FnOnce(&mut serde_json::Value)) {
    let mut value: serde_json::Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    change(&mut value);
    fs::write(path, value.to_string()).unwrap();
}

/// The layer that contains `etc/marker`.
fn base(good: &Good) -> PathBuf {
    let directory = good.bench.root().join("layers");
    let layers = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    layers.into_iter().find(|layer| Shown::layer(layer).path().join("etc/marker").exists()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn version_missing() {
    broken(FindingKind::VersionMissing, |good| {
        let path = good.bench.root().join("VERSION");
        fs::remove_file(&path).unwrap();
        path
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn version_other_is_left_to_the_operator() {
    let good = Good::new().await;
    let version = good.bench.root().join("VERSION");
    let right = fs::read(&version).unwrap();
    fs::write(&version, "oci-rs image store 9\n").unwrap();
    // The layers of an unknown version are not judged.
    fs::remove_file(good.only("layers").join("meta.json")).unwrap();
    let report = repair(&good.bench);
    assert_eq!(kinds(&report), [FindingKind::VersionOther]);
    assert!(report.findings[0].problem.contains("store 9") && !report.is_sound(), "{report:?}");
    assert_eq!(fs::read(&version).unwrap(), b"oci-rs image store 9\n");
    fs::write(&version, right).unwrap();
    repair(&good.bench);
    good.usable().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn directory_missing() {
    broken(FindingKind::DirectoryMissing, |good| {
        let path = good.bench.root().join("trash");
        fs::remove_dir(&path).unwrap();
        path
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn directory_replaced_is_left_to_the_operator() {
    let good = Good::new().await;
    let elsewhere = tempfile::tempdir().unwrap();
    let mine = elsewhere.path().join("mine");
    fs::create_dir(&mine).unwrap();
    let temporary = good.bench.root().join(".tmp-1-x-1");
    fs::write(&temporary, "half").unwrap();
    for name in ["trash", "layers"] {
        let directory = good.bench.root().join(name);
        let aside = good.bench.root().with_file_name("aside");
        fs::rename(&directory, &aside).unwrap();
        symlink(elsewhere.path(), &directory).unwrap();
        let report = repair(&good.bench);
        assert!(kinds(&report).contains(&FindingKind::DirectoryReplaced) && !report.is_sound(), "{report:?}");
        // No repair is made until the operator has replaced the link, and never behind the link.
        assert!(directory.is_symlink() && mine.exists() && temporary.exists());
        fs::remove_file(&directory).unwrap();
        fs::rename(&aside, &directory).unwrap();
    }
    repair(&good.bench);
    good.usable().await;
    // The removal of images does not follow the link either.
    let trash = good.bench.root().join("trash");
    fs::remove_dir(&trash).unwrap();
    symlink(elsewhere.path(), &trash).unwrap();
    good.bench.store.prune().unwrap_err();
    assert!(mine.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn directory_open_to_others() {
    for (name, mode) in [("", 0o755), ("layers", 0o701), ("leases", 0o770)] {
        let mut after = PathBuf::new();
        broken(FindingKind::DirectoryOpen, |good| {
            after = good.bench.root().join(name);
            fs::set_permissions(&after, PermissionsExt::from_mode(mode)).unwrap();
            after.clone()
        })
        .await;
    }
    let good = Good::new().await;
    let root = good.bench.root();
    chown(&root, Some(65534), None).unwrap();
    assert!(repair(&good.bench).is_sound());
    assert_eq!((fs::metadata(&root).unwrap().uid(), fs::metadata(&root).unwrap().mode() & 0o7777), (0, 0o700));
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_with_other_bytes() {
    for directory in ["manifests", "configs"] {
        let finding = broken(FindingKind::DocumentCorrupt, |good| {
            let document = good.only(directory);
            let mut bytes = fs::read(&document).unwrap();
            bytes[0] ^= 1;
            fs::write(&document, bytes).unwrap();
            document
        })
        .await;
        assert_eq!(finding.images.len(), 1, "{finding:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn image_without_a_document_or_a_layer() {
    for directory in ["manifests", "configs", "layers"] {
        let finding = broken(FindingKind::ImageIncomplete, |good| {
            let path = good.only(directory);
            if path.is_dir() {
                fs::remove_dir_all(path).unwrap()
            } else {
                fs::remove_file(path).unwrap()
            }
            good.only("images")
        })
        .await;
        assert!(finding.problem.contains(directory.trim_end_matches('s')), "{finding:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn image_record_torn_or_under_another_name() {
    broken(FindingKind::ImageRecordUnreadable, |good| {
        let record = good.only("images");
        fs::write(&record, "{").unwrap();
        record
    })
    .await;
    broken(FindingKind::ImageRecordUnreadable, |good| {
        let record = good.only("images");
        let other = record.with_file_name(format!("{}.json", &digest(b"other")[7..]));
        fs::rename(record, &other).unwrap();
        other
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leftovers() {
    let add = |kind, name: &'static str, directory: bool| {
        broken(kind, move |good| {
            let path = good.bench.root().join(name);
            if directory {
                fs::create_dir_all(path.join("fs/half")).unwrap();
            } else {
                fs::write(&path, "half").unwrap();
            }
            path
        })
    };
    add(FindingKind::StagingAbandoned, "staging/1-dead-0", true).await;
    add(FindingKind::TrashLeft, "trash/1-x-0", true).await;
    add(FindingKind::TrashLeft, "trash/file", false).await;
    for name in [".tmp-1-x-1", "images/.tmp-1-x-1", "leases/.tmp-1-x-1", "configs/.tmp-1-x-1", "manifests/.tmp-1-x-1"] {
        add(FindingKind::TemporaryLeft, name, false).await;
    }
    broken(FindingKind::TemporaryLeft, |good| {
        let path = good.only("layers").join(".tmp-1-x-1");
        fs::write(&path, "half").unwrap();
        path
    })
    .await;
    let key = format!("fixups/{}", &digest(b"stale")[7..]);
    broken(FindingKind::ImpliedUnused, |good| {
        let path = good.bench.root().join(&key);
        fs::create_dir_all(path.join("fs")).unwrap();
        path
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_files_are_reported_and_kept() {
    let good = Good::new().await;
    let root = good.bench.root();
    fs::create_dir_all(root.join("empty")).unwrap();
    let mut expected = BTreeSet::new();
    let layer = good.only("layers").strip_prefix(&root).unwrap().display().to_string();
    for name in [
        "notes",
        "layers/x",
        "leases/x",
        "images/x.json",
        "staging/file",
        "empty/x",
        "configs/x",
        &format!("{layer}/x"),
    ] {
        fs::write(root.join(name), "mine").unwrap();
        expected.insert(root.join(name));
    }
    let report = repair(&good.bench);
    assert!(report.findings.iter().all(|finding| finding.kind == FindingKind::Foreign), "{report:?}");
    let found: BTreeSet<_> = report.findings.iter().map(|finding| finding.path.clone()).collect();
    assert_eq!(found, expected);
    assert!(report.is_sound() && expected.iter().all(|path| path.exists()));
    // Nor does it stop a sweep.
    good.bench.store.sweep().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn all_damage_at_once_is_found_and_repaired() {
    let good = Good::new().await;
    let root = good.bench.root();
    fs::remove_file(root.join("VERSION")).unwrap();
    fs::set_permissions(&root, PermissionsExt::from_mode(0o755)).unwrap();
    fs::remove_dir(root.join("trash")).unwrap();
    fs::write(base(&good).join("fs/etc/marker"), "esab").unwrap();
    fs::write(good.only("manifests"), "{}").unwrap();
    fs::write(root.join(".tmp-x"), "").unwrap();
    fs::create_dir(root.join("staging/1-dead-0")).unwrap();
    let expected = [
        FindingKind::VersionMissing,
        FindingKind::DirectoryOpen,
        FindingKind::DirectoryMissing,
        FindingKind::LayerChanged,
        FindingKind::DocumentCorrupt,
        FindingKind::StagingAbandoned,
        FindingKind::TemporaryLeft,
    ];
    assert_eq!(kinds(&check(&good.bench)), expected);
    let repaired = repair(&good.bench);
    assert!(repaired.findings.iter().all(|finding| matches!(finding.outcome, Outcome::Repaired(_))), "{repaired:?}");
    assert_eq!(check(&good.bench).findings, []);
    good.usable().await;
}

#[test]
fn a_directory_that_never_was_a_store_does_not_become_one() {
    let directory = tempfile::tempdir().unwrap();
    for path in [directory.path().join("none"), directory.path().to_owned()] {
        let error = fsck(&path, &REPAIR).unwrap_err().to_string();
        assert!(error.contains("looking for an image store"), "{error}");
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}
