//! `kill -9` between any two steps: no unfinished data is ever used, the next process finishes the work without
//! repeating a part of it, and no data is left over.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use fixtures::{
    image::{self, Built, Entry, Layer},
    registry::{Action, Fault, Registry},
};
use image_store::{Image, Silent};

use crate::{
    child::{Scene, open, was_killed},
    common::{Shown, describe, noise, request},
};

/// Trees of directories in a store, by their path below it.
type Trees = BTreeMap<PathBuf, BTreeMap<String, String>>;

/// A registry, and the expected trees of its images.
pub struct World {
    pub registry: Registry,
    pub images: Vec<(String, Built)>,
    layers: Trees,
    /// For each image the trees of its mounts, topmost first.
    mounted: Vec<Vec<BTreeMap<String, String>>>,
}

fn base() -> Layer {
    Layer::of([
        Entry::dir("tmp").mode(0o1777),
        Entry::dir("etc"),
        Entry::file("etc/marker", "base"),
        Entry::file("noise", noise(300_000)),
    ])
}

/// Three layers; the second implies directories with other attributes.
fn first() -> Built {
    let middle = Layer::of([Entry::file("tmp/of/x", "x"), Entry::symlink("etc/link", "marker")]);
    let top = Layer::of([Entry::dir("etc"), Entry::whiteout("etc/marker"), Entry::file("etc/new", "new")]);
    image::Image::new().layer(base()).layer(middle).layer(top).build()
}

/// Shares its base with the first.
fn second() -> Built {
    image::Image::new().layer(base()).layer(Layer::of([Entry::file("own", noise(50_000))])).build()
}

impl World {
    pub async fn new() -> World {
        let registry = Registry::start();
        let images: Vec<_> = [("app:1", first()), ("app:2", second())]
            .into_iter()
            .map(|(name, built)| (registry.push(name, &built), built))
            .collect();
        let directory = tempfile::tempdir().unwrap();
        let store = open(directory.path());
        let (mut layers, mut mounted) = (Trees::new(), Vec::new());
        for (reference, _) in &images {
            let image = store.acquire(request(reference), reference.as_str(), Arc::new(Silent)).await.unwrap();
            mounted.push(shapes(&image));
        }
        for path in listing(&directory.path().join("layers")) {
            layers.insert(PathBuf::from(path.file_name().unwrap()), shape(Shown::layer(&path).path()));
        }
        World { registry, images, layers, mounted }
    }

    /// A store as an earlier process left it, with these images and their leases.
    async fn prepare(&self, root: &Path, images: &[(usize, &str)]) {
        let store = open(root);
        for (at, lease) in images {
            store.acquire(request(&self.images[*at].0), *lease, Arc::new(Silent)).await.unwrap();
        }
    }

    /// Checks that every committed layer, document and record is complete.
    pub fn assert_sound(&self, root: &Path) {
        for layer in listing(&root.join("layers")) {
            let name = PathBuf::from(layer.file_name().unwrap());
            let meta: serde_json::Value = serde_json::from_slice(&fs::read(layer.join("meta.json")).unwrap()).unwrap();
            assert!(meta["diff_id"].as_str().unwrap().ends_with(name.to_str().unwrap()));
            assert_eq!(shape(Shown::layer(&layer).path()), self.layers[&name], "layer {}", name.display());
        }
        for directory in ["manifests", "configs"] {
            for path in committed(&root.join(directory)) {
                let digest = image::digest(&fs::read(&path).unwrap());
                assert!(digest.ends_with(path.file_name().unwrap().to_str().unwrap()), "{}", path.display());
            }
        }
        for path in committed(&root.join("images")) {
            let record: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            for layer in record["layers"].as_array().unwrap() {
                assert!(root.join("layers").join(hex(layer["diff_id"].as_str().unwrap())).is_dir(), "{record}");
            }
        }
    }

    /// Checks that the next process recovers the store, repeats no finished work, and leaves no data. No store of an
    /// earlier process is open.
    pub async fn assert_recovers(&self, root: &Path) {
        self.assert_sound(root);
        // A request of a pull that was cut can still be on its way.
        self.registry.disconnected().await;
        let store = open(root);
        // As the plugin does with the leases of removed tasks.
        for lease in store.leases().unwrap() {
            store.release(&lease).unwrap();
        }
        store.sweep().unwrap();
        assert_eq!(store.sweep().unwrap(), Default::default());
        for (at, (reference, built)) in self.images.iter().enumerate() {
            let finished: BTreeSet<String> = listing(&root.join("layers"))
                .iter()
                .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
                .collect();
            self.registry.forget_requests();
            let image = store.acquire(request(reference), "task", Arc::new(Silent)).await.unwrap();
            for (blob, diff_id) in layers_of(built) {
                let asked = self.registry.count(&blob);
                assert_eq!(asked, usize::from(!finished.contains(hex(&diff_id))), "requests for {blob}");
            }
            assert_eq!(shapes(&image), self.mounted[at]);
            store.release("task").unwrap();
        }
        self.assert_sound(root);
        store.sweep().unwrap();
        assert_nothing_left(root);
        store.prune().unwrap();
        for directory in ["layers", "fixups", "manifests", "configs", "images", "leases", "locks", "trash"] {
            assert_eq!(listing(&root.join(directory)), Vec::<PathBuf>::new());
        }
    }
}

/// Checks that there is no lease, no lock, no unfinished layer and no temporary file. Staging may contain the empty
/// directory of a running process.
pub fn assert_nothing_left(root: &Path) {
    for directory in ["leases", "locks", "trash"] {
        assert_eq!(listing(&root.join(directory)), Vec::<PathBuf>::new());
    }
    for process in listing(&root.join("staging")) {
        assert_eq!(listing(&process), Vec::<PathBuf>::new());
    }
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for path in listing(&directory) {
            assert!(!path.file_name().unwrap().as_encoded_bytes().starts_with(b".tmp-"), "{}", path.display());
            if path.is_dir() && !path.ends_with("fs") {
                directories.push(path);
            }
        }
    }
}

/// Blob and diff id of each layer.
pub fn layers_of(built: &Built) -> Vec<(String, String)> {
    let (_, config) = built.blobs.last().unwrap();
    let config: serde_json::Value = serde_json::from_slice(config).unwrap();
    let diff_ids = config["rootfs"]["diff_ids"].as_array().unwrap();
    built.blobs.iter().zip(diff_ids).map(|((blob, _), id)| (blob.clone(), id.as_str().unwrap().to_owned())).collect()
}

fn hex(digest: &str) -> &str {
    digest.split_once(':').unwrap().1
}

pub fn listing(directory: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

/// The entries of a directory without temporary files.
fn committed(directory: &Path) -> Vec<PathBuf> {
    let is_named = |path: &PathBuf| !path.file_name().unwrap().as_encoded_bytes().starts_with(b".tmp-");
    listing(directory).into_iter().filter(is_named).collect()
}

fn shapes(image: &Image) -> Vec<BTreeMap<String, String>> {
    image.layers.iter().map(|layer| shape(Shown::of(layer).path())).collect()
}

/// A tree without the times of implied directories and whiteouts, which are the time of unpacking.
fn shape(root: &Path) -> BTreeMap<String, String> {
    let timeless = |line: String| {
        let words: Vec<_> = line.split(' ').collect();
        if words[0].starts_with(['2', '4']) { [&words[..2], &words[3..]].concat().join(" ") } else { line }
    };
    describe(root).into_iter().map(|(path, line)| (path, timeless(line))).collect()
}

/// How often a scene passes each failpoint: the smaller number of two runs, because background work varies.
async fn points(world: &World, scene: &Scene, before: &[(usize, &str)]) -> BTreeMap<String, usize> {
    let mut least: Option<BTreeMap<String, usize>> = None;
    for _ in 0..2 {
        let directory = tempfile::tempdir().unwrap();
        let (root, trace) = (directory.path().join("images"), directory.path().join("trace"));
        world.prepare(&root, before).await;
        assert!(scene.run(&root, failpoint::TRACE, &trace).success(), "{scene:?}");
        let mut counts = BTreeMap::new();
        for name in fs::read_to_string(&trace).unwrap().lines() {
            *counts.entry(name.to_owned()).or_default() += 1;
        }
        least = Some(match least {
            None => counts,
            Some(others) => {
                let both = |(name, count): (String, usize)| Some((name.clone(), count.min(*others.get(&name)?)));
                counts.into_iter().filter_map(both).collect()
            }
        });
    }
    least.unwrap()
}

/// Kills a process at every failpoint of a scene, each time in a new store, and checks the store.
async fn visit_all(scene: impl Fn(&World) -> Scene, before: &[(usize, &str)], expected: &[&str]) {
    let world = World::new().await;
    let scene = scene(&world);
    let points = points(&world, &scene, before).await;
    for name in expected {
        assert!(points.contains_key(*name), "{name} is not passed by {scene:?}: {points:?}");
    }
    for (name, count) in points {
        for arrival in 1..=count {
            let directory = tempfile::tempdir().unwrap();
            let root = directory.path().join("images");
            world.prepare(&root, before).await;
            let status = scene.run(&root, failpoint::VARIABLE, format!("{name}:{arrival}"));
            assert!(was_killed(status), "{name}:{arrival} of {scene:?}: {status}");
            world.assert_sound(&root);
            if matches!(scene, Scene::Pull(_)) {
                assert_leases_hold(&root);
            }
            world.assert_recovers(&root).await;
        }
    }
}

/// Checks that leases keep their layers while another process removes images: either all layers of the lease that the
/// killed pull had replaced, or all layers that it had finished.
fn assert_leases_hold(root: &Path) {
    let store = open(root);
    let here = |lease: &serde_json::Value, kind: &str, directory: &str| {
        let names = lease[kind].as_array().unwrap().iter().map(|name| hex(name.as_str().unwrap()).to_owned());
        names.filter(|name| root.join(directory).join(name).is_dir()).collect::<Vec<_>>()
    };
    let leases: Vec<serde_json::Value> = committed(&root.join("leases"))
        .iter()
        .map(|path| serde_json::from_slice(&fs::read(path).unwrap()).unwrap())
        .collect();
    let holds = |lease| (here(lease, "layers", "layers"), here(lease, "fixups", "fixups"));
    let before: Vec<_> = leases.iter().map(holds).collect();
    store.prune().unwrap();
    store.sweep().unwrap();
    assert_eq!(leases.iter().map(holds).collect::<Vec<_>>(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_killed_anywhere() {
    let expected = [
        "commit-before-rename",
        "commit-before-directory-rename",
        "staging-before-lock",
        "pull-before-layers",
        "fetch-before-end",
        "layer-before-record",
        "layer-lock-before-unlock",
        "save-before-record",
        "implied-before-attributes",
        "mountable-before-lease",
    ];
    visit_all(|world| Scene::Pull(world.images[0].0.clone()), &[], &expected).await;
}

/// A task that is restarted with another image keeps the old one until the new one is ready.
#[tokio::test(flavor = "multi_thread")]
async fn a_pull_that_replaces_a_lease_killed_anywhere() {
    visit_all(|world| Scene::Pull(world.images[1].0.clone()), &[(0, "task")], &["mountable-before-lease"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn removals_killed_anywhere() {
    let expected = [
        "release-before-removal",
        "retain-before-forget",
        "trash-before-rename",
        "trash-before-deletion",
        "orphans-before-removal",
    ];
    visit_all(|_| Scene::Leave, &[(0, "one"), (1, "two")], &expected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_killed_anywhere() {
    let world = World::new().await;
    let directory = tempfile::tempdir().unwrap();
    let archive = directory.path().join("image.tar");
    fs::write(&archive, image::archive(first().saved(&["team/app:1"]))).unwrap();
    let scene = Scene::Load(archive, "team/app:1".to_owned());
    for (name, count) in points(&world, &scene, &[]).await {
        for arrival in 1..=count {
            let directory = tempfile::tempdir().unwrap();
            let root = directory.path().join("images");
            assert!(was_killed(scene.run(&root, failpoint::VARIABLE, format!("{name}:{arrival}"))), "{name}:{arrival}");
            assert_leases_hold(&root);
            world.assert_sound(&root);
            assert!(scene.command(&root).status().unwrap().success());
            world.assert_sound(&root);
            assert_eq!(listing(&root.join("layers")).len(), 3);
            let store = open(&root);
            store.release("task").unwrap();
            store.sweep().unwrap();
            assert_nothing_left(&root);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn forgetting_an_image_and_sweeping_killed_anywhere() {
    let world = World::new().await;
    for (scene, before) in [(Scene::Remove(world.images[0].0.clone()), Some(0)), (Scene::Sweep, None)] {
        let make = async |root: &Path| {
            let store = open(root);
            match before {
                Some(at) => {
                    store.acquire(request(&world.images[at].0), "task", Arc::new(Silent)).await.unwrap();
                    store.release("task").unwrap();
                }
                None => make_a_mess(root),
            }
        };
        let directory = tempfile::tempdir().unwrap();
        let (root, trace) = (directory.path().join("images"), directory.path().join("trace"));
        make(&root).await;
        assert!(scene.run(&root, failpoint::TRACE, &trace).success());
        let mut seen = BTreeMap::<String, usize>::new();
        for name in fs::read_to_string(&trace).unwrap().lines() {
            let arrival = seen.entry(name.to_owned()).or_default();
            *arrival += 1;
            let directory = tempfile::tempdir().unwrap();
            let root = directory.path().join("images");
            make(&root).await;
            assert!(was_killed(scene.run(&root, failpoint::VARIABLE, format!("{name}:{arrival}"))), "{name}:{arrival}");
            open(&root).sweep().unwrap();
            world.assert_recovers(&root).await;
        }
        assert!(seen.len() > 2, "{seen:?}");
    }
}

/// The leftovers of several crashes.
fn make_a_mess(root: &Path) {
    for directory in ["staging/1-dead-0/1-x-1/fs/etc", "trash/1-x-2/fs", "layers/0123/fs", "fixups/4567/fs"] {
        fs::create_dir_all(root.join(directory)).unwrap();
    }
    for file in
        ["images/.tmp-1", "leases/.tmp-2", ".tmp-3", "layers/0123/.tmp-4", "manifests/89ab", "configs/cdef", "locks/12"]
    {
        fs::write(root.join(file), "half").unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_killed_in_the_middle_of_a_layer() {
    let world = World::new().await;
    let (reference, built) = &world.images[0];
    let (blob, _) = &layers_of(built)[0];
    for length in [0, 1000, 200_000] {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("images");
        world.registry.forget_requests();
        world.registry.fault(Fault::on(blob, Action::Stall(length)));
        let mut process = Scene::Pull(reference.clone()).start(&root);
        let arrived = || {
            let staged: usize = listing(&root.join("staging")).iter().map(|process| listing(process).len()).sum();
            world.registry.count(blob) == 1 && staged == 1 && listing(&root.join("layers")).len() == 2
        };
        assert!(fixtures::wait::eventually(Duration::from_secs(30), || root.join("trash").is_dir() && arrived()).await);
        process.kill();
        world.registry.heal();
        world.assert_recovers(&root).await;
    }
}
