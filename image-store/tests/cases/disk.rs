//! Disks that are full, read-only or broken: the error names the file and the cause, the pull leaves no data, and the
//! next pull works as soon as the disk does.

// A skipped kind of disk and the output of a repair must be visible.
#![allow(clippy::print_stdout)]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use fixtures::{
    image::{self, Built, Compression, Entry, Layer},
    registry::Registry,
};
use image_store::{
    FsckOptions, Image, LayerFormat, Limits, LoadRequest, PullError, Retention, Silent, Store, StoreConfig, fsck,
};

use crate::{
    common::{Shown, config, limits, noise, request, small},
    crash::{assert_nothing_left, listing},
};

/// A file system for one test.
pub struct Disk {
    directory: tempfile::TempDir,
    /// The block device of an ext4.
    file: PathBuf,
    layers: LayerFormat,
}

/// The kind of the file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Memory,
    Ext4,
    /// Its quota needs only one command.
    Btrfs,
}

const KINDS: [Kind; 2] = [Kind::Memory, Kind::Ext4];

fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).output().map_err(|error| format!("{program}: {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(format!("{program} {arguments:?}: {text}")) }
}

impl Disk {
    /// A file system of this many MiB and inodes. `None`, with a message, if the kernel has no loop devices.
    pub fn new(kind: Kind, megabytes: u64, inodes: u64) -> Option<Disk> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("disk");
        Disk::with_file(directory, file, kind, megabytes, inodes)
    }

    fn with_file(directory: tempfile::TempDir, file: PathBuf, kind: Kind, megabytes: u64, inodes: u64) -> Option<Disk> {
        let disk = Disk { layers: config(directory.path()).layers, directory, file };
        // The kernel mounts no image from a file in memory.
        let disk = if kind == Kind::Memory { disk.in_directories() } else { disk };
        fs::create_dir(disk.path()).unwrap();
        if kind != Kind::Memory {
            if !Path::new("/dev/loop-control").exists() {
                println!("skipped on {kind:?}: no loop devices here");
                return None;
            }
            fs::File::create(&disk.file).unwrap().set_len(megabytes << 20).unwrap();
        }
        let (file, count) = (disk.file.to_str().unwrap(), inodes.to_string());
        match kind {
            Kind::Memory => {}
            // Without a journal the file system stays writable when writes fail.
            Kind::Ext4 => run("mkfs.ext4", &["-q", "-F", "-O", "^has_journal", "-m", "0", "-N", &count, file]).unwrap(),
            Kind::Btrfs => run("mkfs.btrfs", &["-q", "-f", file]).unwrap(),
        }
        disk.mount(kind, megabytes, inodes);
        Some(disk)
    }

    /// With layers as directories: an EROFS image uses one inode for all its files.
    fn in_directories(mut self) -> Disk {
        self.layers = LayerFormat::Directory;
        self
    }

    fn mount(&self, kind: Kind, megabytes: u64, inodes: u64) {
        let path = self.path();
        let (file, path) = (self.file.to_str().unwrap(), path.to_str().unwrap());
        match kind {
            Kind::Memory => {
                let options = format!("size={megabytes}m,nr_inodes={inodes}");
                run("mount", &["-t", "tmpfs", "-o", &options, "tmpfs", path]).unwrap();
            }
            Kind::Ext4 => run("mount", &["-t", "ext4", "-o", "loop,errors=continue", file, path]).unwrap(),
            Kind::Btrfs => run("mount", &["-t", "btrfs", "-o", "loop", file, path]).unwrap(),
        }
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().join("mnt")
    }

    pub fn root(&self) -> PathBuf {
        self.path().join("images")
    }

    fn store(&self, retention: Option<Retention>) -> Store {
        let limits = Limits { free_bytes: 0, ..limits() };
        let layers = self.layers;
        Store::open(StoreConfig { limits, retention, layers, ..config(&self.root()) }).unwrap()
    }

    fn remount(&self, option: &str) {
        run("mount", &["-o", &format!("remount,{option}"), self.path().to_str().unwrap()]).unwrap();
    }

    fn unmount(&self) -> Result<(), String> {
        // Immediately, also while a store that is about to be dropped holds the file system.
        run("umount", &["-l", self.path().to_str().unwrap()])
    }

    fn free(&self) -> (u64, u64) {
        let stat = rustix::fs::statvfs(self.path()).unwrap();
        (stat.f_bavail * stat.f_frsize, stat.f_favail)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Err(error) = self.unmount() {
            println!("left behind: {error}");
        }
    }
}

async fn pull(store: &Store, reference: &str, lease: &str) -> Result<Image, PullError> {
    store.acquire(request(reference), lease, Arc::new(Silent)).await
}

/// An image that is small when compressed, so that its disk space is not known before unpacking.
fn swells(megabytes: usize) -> Built {
    let large = Layer::of([Entry::file("large", vec![b'x'; megabytes << 20])]);
    image::Image::new().layer(Layer::of([Entry::file("small", "small")])).layer(large).build()
}

fn many_files(count: usize) -> Built {
    image::Image::new().layer(Layer::of((0..count).map(|at| Entry::file(format!("file{at}"), "x")))).build()
}

/// An image that does not compress.
fn dense(marker: &str, megabytes: usize) -> Built {
    let layer = Layer::of([Entry::file(marker, noise(megabytes << 20))]).compression(Compression::Plain);
    image::Image::new().layer(layer).build()
}

/// Checks the error of a task that cannot start, and that its pull left no data.
fn assert_full(disk: &Disk, error: &PullError, free_before: (u64, u64)) {
    let text = error.to_string();
    assert!(matches!(error, PullError::DiskFull { .. }) && error.recoverable(), "{error:?}");
    for part in ["no space left", disk.root().to_str().unwrap(), " bytes", "free"] {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
    assert_nothing_left(&disk.root());
    assert_eq!(listing(&disk.root().join("layers")), Vec::<PathBuf>::new());
    let free = disk.free();
    // Directories may have grown by a few blocks, and this process has a staging directory.
    assert!(free.0 + (256 << 10) >= free_before.0 && free.1 + 8 >= free_before.1, "{free:?} of {free_before:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_run_out_in_the_middle_of_a_layer() {
    for kind in KINDS {
        let Some(disk) = Disk::new(kind, 32, 4096) else { continue };
        let (registry, store) = (Registry::start(), disk.store(None));
        let reference = registry.push("app:1", &swells(20));
        fs::write(disk.path().join("filler"), noise(16 << 20)).unwrap();
        let before = disk.free();
        let error = pull(&store, &reference, "task").await.unwrap_err();
        assert_full(&disk, &error, before);
        // The large file, or the record of the other layer if it was written later.
        assert!(error.to_string().contains("(os error 28)") && error.to_string().contains("/staging/"), "{error}");
        fs::remove_file(disk.path().join("filler")).unwrap();
        let image = pull(&store, &reference, "task").await.unwrap();
        assert_eq!(fs::metadata(Shown::nth(&image, 0).path().join("large")).unwrap().len(), 20 << 20);
    }
}

/// The disk has space, but the quota is used up.
#[tokio::test(flavor = "multi_thread")]
async fn a_quota_is_used_up() {
    let Some(disk) = Disk::new(Kind::Btrfs, 256, 0) else { return };
    let path = disk.path();
    let limit = |size: &str| run("btrfs", &["qgroup", "limit", size, path.to_str().unwrap()]).unwrap();
    run("btrfs", &["quota", "enable", path.to_str().unwrap()]).unwrap();
    // While the scan that `enable` starts is running, the kernel does not count new data, and a later write fails.
    run("btrfs", &["quota", "rescan", "-w", path.to_str().unwrap()]).unwrap();
    limit("16M");
    let (registry, store) = (Registry::start(), disk.store(None));
    let reference = registry.push("app:1", &swells(40));
    let error = pull(&store, &reference, "task").await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, PullError::DiskFull { .. }) && error.recoverable(), "{error:?}");
    // btrfs may notice late that the quota is used up, so the last write may be another file than the layer's.
    for part in ["(os error 122)", disk.root().to_str().unwrap()] {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
    assert_nothing_left(&disk.root());
    assert_eq!(listing(&disk.root().join("layers")), Vec::<PathBuf>::new());
    limit("128M");
    let image = pull(&store, &reference, "task").await.unwrap();
    assert_eq!(fs::metadata(Shown::nth(&image, 0).path().join("large")).unwrap().len(), 40 << 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn inodes_run_out_in_the_middle_of_a_layer() {
    for kind in KINDS {
        let Some(disk) = Disk::new(kind, 32, 1024).map(Disk::in_directories) else { continue };
        let (registry, store) = (Registry::start(), disk.store(None));
        let reference = registry.push("app:1", &many_files(700));
        fs::create_dir(disk.path().join("filler")).unwrap();
        for at in 0..600 {
            fs::write(disk.path().join(format!("filler/{at}")), "").unwrap();
        }
        let before = disk.free();
        let error = pull(&store, &reference, "task").await.unwrap_err();
        assert_full(&disk, &error, before);
        assert!(error.to_string().contains(" inodes free"), "{error}");
        fs::remove_dir_all(disk.path().join("filler")).unwrap();
        let image = pull(&store, &reference, "task").await.unwrap();
        assert_eq!(listing(Shown::nth(&image, 0).path()).len(), 700);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_finds_the_disk_full() {
    let Some(disk) = Disk::new(Kind::Memory, 32, 4096) else { return };
    let store = disk.store(None);
    let archive = disk.directory.path().join("image.tar");
    fs::write(&archive, image::archive(swells(20).saved(&["app:1"]))).unwrap();
    let load = async || {
        let source = fs::File::open(&archive).unwrap().into();
        let name = "image.tar".to_owned();
        let request = LoadRequest { source, name, reference: "app:1".parse().unwrap(), pin: false, timeout: None };
        store.load(request, "task").await
    };
    fs::write(disk.path().join("filler"), noise(16 << 20)).unwrap();
    let before = disk.free();
    assert_full(&disk, &load().await.unwrap_err(), before);
    fs::remove_file(disk.path().join("filler")).unwrap();
    load().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_cannot_fit_is_not_fetched() {
    let Some(disk) = Disk::new(Kind::Memory, 8, 1024) else { return };
    let (registry, store) = (Registry::start(), disk.store(None));
    let built = dense("dense", 10);
    let before = disk.free();
    let error = pull(&store, &registry.push("app:1", &built), "task").await.unwrap_err();
    assert_full(&disk, &error, before);
    assert_eq!(registry.count(&built.blobs[0].0), 0);
    let size = built.blobs[0].1.len().to_string();
    assert!(error.to_string().contains(&size), "{error}");
}

/// A policy whose delay never ends during a test.
const LATER: Retention = Retention { delay: Duration::from_secs(3600), high: 101, low: 100 };

#[tokio::test(flavor = "multi_thread")]
async fn unused_images_are_removed_for_a_pull_if_the_policy_allows() {
    for kind in KINDS {
        // A lack of bytes that is not known before, a lack of bytes that is known, and a lack of inodes.
        let cases = [
            (32, 4096, swells(14), swells(18)),
            (32, 4096, dense("old", 12), dense("new", 20)),
            (32, 1024, many_files(500), many_files(700)),
        ];
        for (megabytes, inodes, old, new) in cases {
            let Some(disk) = Disk::new(kind, megabytes, inodes) else { continue };
            let disk = if inodes == 1024 { disk.in_directories() } else { disk };
            let registry = Registry::start();
            let held = registry.push("held:1", &dense("held", 1));
            let (old, new) = (registry.push("old:1", &old), registry.push("new:1", &new));
            let careful = disk.store(None);
            let held = pull(&careful, &held, "held").await.unwrap();
            pull(&careful, &old, "old").await.unwrap();
            // Not while a lease holds it, and not without a policy.
            let generous = disk.store(Some(LATER));
            let told = Arc::new(AtomicUsize::new(0));
            let teller = Arc::clone(&told);
            generous.on_removal(move || {
                teller.fetch_add(1, Ordering::Relaxed);
            });
            let error = pull(&generous, &new, "new").await.unwrap_err();
            assert!(matches!(error, PullError::DiskFull { .. }), "{error:?}");
            careful.release("old").unwrap();
            pull(&careful, &new, "new").await.unwrap_err();
            assert_eq!(careful.list().unwrap().len(), 2);
            let before = told.load(Ordering::Relaxed);
            pull(&generous, &new, "new").await.unwrap();
            assert_eq!(told.load(Ordering::Relaxed), before + 1, "the callback releases the mounts of removed layers");
            let names: Vec<_> = careful.list().unwrap().into_iter().map(|image| image.reference.to_string()).collect();
            assert!(names.len() == 2 && !names.contains(&old), "{names:?}");
            assert!(Shown::nth(&held, 0).path().join("held").exists());
            careful.release("held").unwrap();
            careful.release("new").unwrap();
            assert_nothing_left(&disk.root());
        }
    }
}

/// A start on a disk without a free block: even its lease cannot be written.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_filled_by_other_data_is_a_recoverable_error() {
    for kind in KINDS {
        let Some(disk) = Disk::new(kind, 8, 1024) else { continue };
        let (registry, store) = (Registry::start(), disk.store(Some(LATER)));
        let reference = registry.push("app:1", &dense("app", 1));
        let running = pull(&store, &reference, "running").await.unwrap();
        let filler = disk.path().join("filler");
        fs::write(&filler, noise(8 << 20)).unwrap_err();
        // Also the last block.
        while fs::OpenOptions::new()
            .append(true)
            .open(&filler)
            .and_then(|mut file| std::io::Write::write_all(&mut file, b"x"))
            .is_ok()
        {}
        let error = pull(&store, &reference, "another").await.unwrap_err();
        assert!(matches!(error, PullError::DiskFull { .. }) && error.recoverable(), "{error:?}");
        assert!(Shown::nth(&running, 0).path().join("app").exists());
        assert_eq!(store.leases().unwrap(), ["running"]);
        // A release needs no disk space, so it can free some.
        store.release("running").unwrap();
        assert_eq!(store.prune().unwrap().layers, 1);
        pull(&store, &registry.push("tiny:1", &small("tiny")), "another").await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watermarks_count_inodes_too() {
    let Some(disk) = Disk::new(Kind::Memory, 64, 1024) else { return };
    let (registry, store) = (Registry::start(), disk.store(None));
    pull(&store, &registry.push("app:1", &many_files(800)), "task").await.unwrap();
    store.release("task").unwrap();
    let policy = Retention { delay: Duration::from_secs(3600), high: 75, low: 70 };
    let report = store.retain(&policy).unwrap();
    assert_eq!((report.removed.len(), report.layers), (1, 1));
    let pressure = report.removed[0].pressure.unwrap();
    assert!(matches!(pressure, image_store::Pressure::Inodes(75..)) && pressure.to_string().contains("inodes"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_disk() {
    for kind in KINDS {
        let Some(disk) = Disk::new(kind, 32, 1024) else { continue };
        let registry = Registry::start();
        let (old, new) = (registry.push("app:1", &dense("old", 1)), registry.push("app:2", &dense("new", 1)));
        let store = disk.store(None);
        let running = pull(&store, &old, "running").await.unwrap();
        disk.remount("ro");
        for reference in [&old, &new] {
            let error = pull(&store, reference, "another").await.unwrap_err();
            let text = error.to_string();
            assert!(error.recoverable() && text.contains("Read-only file system"), "{text}");
            assert!(text.contains(disk.root().to_str().unwrap()), "{text}");
        }
        for error in [
            store.release("running").unwrap_err(),
            store.sweep().unwrap_err(),
            store.prune().unwrap_err(),
            Store::open(StoreConfig { root: disk.root(), ..Default::default() }).unwrap_err(),
        ] {
            assert!(error.to_string().contains("Read-only file system"), "{error}");
        }
        assert_eq!(fs::metadata(Shown::nth(&running, 0).path().join("old")).unwrap().len(), 1 << 20);
        disk.remount("rw");
        pull(&store, &new, "another").await.unwrap();
        store.release("running").unwrap();
        store.release("another").unwrap();
        assert_nothing_left(&disk.root());
    }
}

/// A disk whose writes fail beyond a certain amount: its file lies on a file system that is too small for it. Later the
/// file system grows.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_loses_writes() {
    let Some(below) = Disk::new(Kind::Memory, 10, 64) else { return };
    let directory = tempfile::tempdir().unwrap();
    let Some(disk) = Disk::with_file(directory, below.path().join("disk"), Kind::Ext4, 48, 1024) else { return };
    let registry = Registry::start();
    let (old, new) = (registry.push("app:1", &dense("old", 1)), registry.push("app:2", &dense("new", 24)));
    let store = disk.store(None);
    pull(&store, &old, "running").await.unwrap();
    store.sweep().unwrap();
    let synced = || {
        let text = |layer: &PathBuf| fs::read_to_string(layer.join("meta.json")).unwrap_or_default();
        let layers = listing(&disk.root().join("layers"));
        layers.iter().filter(|layer| text(layer).contains("\"synced\": true")).count()
    };
    assert_eq!(synced(), 1);
    // Input/output error, or the error of the file system below.
    let lost = |text: &str| text.contains("(os error 5)") || text.contains("(os error 28)");
    // The writes succeed in memory and fail later. Only a sync reports it: this one or the one in the background.
    match pull(&store, &new, "another").await {
        Err(error) => assert!(error.recoverable() && lost(&error.to_string()), "{error}"),
        Ok(_) => {
            store.release("another").unwrap();
            if let Err(error) = store.sweep() {
                let text = error.to_string();
                assert!(text.contains(disk.root().to_str().unwrap()) && lost(&text), "{text}");
            }
        }
    }
    // The kernel reports a failed write once. The next sync succeeds, and must not count as a success for these layers.
    for store in [&store, &disk.store(None)] {
        if let Err(error) = store.sweep() {
            println!("{error}");
        }
    }
    assert_eq!(synced(), 1);
    drop(store);
    disk.unmount().unwrap();
    below.remount("size=64m");
    // Exit code 1 means that it has repaired something.
    if let Err(repaired) = run("e2fsck", &["-f", "-y", disk.file.to_str().unwrap()]) {
        println!("{repaired}");
    }
    disk.mount(Kind::Ext4, 48, 1024);
    let store = disk.store(None);
    store.release("running").unwrap();
    store.release("another").unwrap();
    store.sweep().unwrap();
    let image = pull(&store, &new, "another").await.unwrap();
    assert!(fs::read(Shown::nth(&image, 0).path().join("new")).unwrap() == noise(24 << 20));
}

/// A file that opens but cannot be read, as on a disk with a bad sector: an unmapped part of the memory of this process
/// is mounted over it.
struct BadSector<'a>(&'a Path);

impl BadSector<'_> {
    fn at(path: &Path) -> BadSector<'_> {
        let memory = format!("/proc/{}/mem", std::process::id());
        run("mount", &["--bind", &memory, path.to_str().unwrap()]).unwrap();
        assert_eq!(fs::read(path).unwrap_err().raw_os_error(), Some(5));
        BadSector(path)
    }
}

impl Drop for BadSector<'_> {
    fn drop(&mut self) {
        if let Err(error) = run("umount", &[self.0.to_str().unwrap()]) {
            println!("left behind: {error}");
        }
    }
}

/// An unreadable file counts neither as missing nor as damaged: no data is derived from it, and no data is removed
/// because of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_cannot_be_read() {
    let Some(disk) = Disk::new(Kind::Ext4, 32, 1024) else { return };
    let registry = Registry::start();
    let reference = registry.push("app:1", &dense("app", 1));
    let store = disk.store(None);
    let running = pull(&store, &reference, "running").await.unwrap();
    let layer = running.layers[0].parent().unwrap().to_owned();
    store.sweep().unwrap();
    let only = |directory: &str| match &listing(&disk.root().join(directory))[..] {
        [file] => file.clone(),
        others => panic!("{others:?}"),
    };
    let records = [only("leases"), only("images"), only("manifests"), only("configs"), layer.join("meta.json")];
    let content: Vec<_> = records.iter().map(|record| fs::read(record).unwrap()).collect();
    for record in &records {
        let bad = BadSector::at(record);
        let tells = |text: String| {
            let told = text.contains("(os error 5)") && text.contains(record.to_str().unwrap());
            assert!(told, "{}: {text}", record.display());
        };
        // A pull that does not need the file continues without it.
        match pull(&store, &reference, "another").await {
            Ok(image) => assert_eq!(image.layers, running.layers),
            Err(error) => {
                assert!(error.recoverable(), "{error:?}");
                tells(error.to_string());
            }
        }
        for outcome in [
            store.sweep().map(drop),
            store.prune().map(drop),
            store.retain(&Retention { delay: Duration::ZERO, high: 1, low: 0 }).map(drop),
            fsck(&disk.root(), &FsckOptions { repair: true, ..Default::default() }).map(drop),
        ] {
            outcome.unwrap_or_else(|error| tells(error.to_string()));
        }
        drop(bad);
        store.release("another").unwrap();
        let after: Vec<_> = records.iter().map(|record| fs::read(record).unwrap()).collect();
        assert!(after == content, "after {}", record.display());
        assert_eq!(fs::metadata(Shown::nth(&running, 0).path().join("app")).unwrap().len(), 1 << 20);
    }
    store.release("running").unwrap();
    assert_eq!(store.prune().unwrap().layers, 1);
}

/// A directory in which no file can be replaced.
#[tokio::test(flavor = "multi_thread")]
async fn a_directory_without_write_permission() {
    let Some(disk) = Disk::new(Kind::Ext4, 32, 1024) else { return };
    let registry = Registry::start();
    let reference = registry.push("app:1", &dense("app", 1));
    for directory in ["layers", "images", "leases", "locks", "staging"] {
        let store = disk.store(None);
        let path = disk.root().join(directory);
        run("chattr", &["+i", path.to_str().unwrap()]).unwrap();
        let outcome = pull(&store, &reference, "task").await;
        run("chattr", &["-i", path.to_str().unwrap()]).unwrap();
        let error = outcome.unwrap_err();
        let text = error.to_string();
        assert!(error.recoverable() && text.contains("Operation not permitted"), "{text}");
        assert!(text.contains(path.to_str().unwrap()), "{text}");
        pull(&store, &reference, "task").await.unwrap();
        store.release("task").unwrap();
        assert_nothing_left(&disk.root());
        store.prune().unwrap();
    }
}
