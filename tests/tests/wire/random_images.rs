//! Random images of several layers: what a container sees equals what umoci makes of the image.
//!
//! `OCI_RS_RANDOM_IMAGES` is the number of images, `OCI_RS_RANDOM_SEED` the first seed. Differences that are known are
//! not generated or not compared; `docs/images.md` lists them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, Metadata},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
};

use fixtures::{
    busybox,
    image::{self, Built, Entry, Image, Layer},
    must::Must,
    registry::Registry,
};
use kit::{node::Node, plugin::Plugin};
use rustix::fs::FileType;
use serde_json::json;

/// The directory with the random files.
const TOP: &str = "r";
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// A small generator of random numbers (xorshift).
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 11) % limit as u64).must("a small number")
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// The layers of a random image, from the lowest to the topmost.
struct Generator {
    random: Random,
    /// The paths of all layers so far, and whether they are directories.
    merged: BTreeMap<String, bool>,
}

/// What one layer contains so far.
#[derive(Default)]
struct Contents {
    entries: Vec<Entry>,
    /// Paths with an entry or a whiteout.
    touched: BTreeSet<String>,
    /// Files that can have further names.
    files: Vec<Entry>,
}

impl Generator {
    fn layer(&mut self) -> Layer {
        let mut layer = Contents::default();
        for _ in 0..4 + self.random.below(12) {
            let depth = 1 + self.random.below(3);
            let path = (0..depth).fold(TOP.to_owned(), |path, _| format!("{path}/{}", self.random.of(&NAMES)));
            self.add(&mut layer, &path);
        }
        Layer::of(layer.entries)
    }

    fn add(&mut self, layer: &mut Contents, path: &str) {
        let parents: Vec<&str> = path.match_indices('/').map(|(at, _)| &path[..at]).collect();
        // No entry lies below a file.
        if parents.iter().any(|parent| self.merged.get(*parent) == Some(&false)) || is_used(&layer.touched, path) {
            return;
        }
        let known = self.merged.get(path).copied();
        let entry = match self.random.below(100) {
            0..25 => Entry::dir(path).mode(self.random.of(&[0o755, 0o700, 0o1777, 0o711])),
            25..50 => self.file(path),
            50..60 => Entry::symlink(path, self.random.of(&["a", "../b", "/etc/passwd", "c/../../d"])),
            60..64 => Entry::fifo(path).mode(self.random.of(&[0o644, 0o600])),
            64..67 => Entry::char_device(path, 1, 3).mode(0o666),
            67..70 => Entry::block_device(path, 7, 1).mode(0o660),
            70..80 if !layer.files.is_empty() => {
                let at = self.random.below(layer.files.len());
                // As tar writes it: with the attributes of the file.
                layer.files[at].linked(path)
            }
            80..92 if known.is_some() => return self.hide(layer, path, Entry::whiteout(path), true),
            92..100 if known == Some(true) => return self.hide(layer, path, Entry::opaque(path), false),
            _ => return,
        };
        let is_dir = entry.is_dir();
        if !is_dir {
            self.forget_below(path);
        }
        let entry = if entry.is_hard_link() { entry } else { self.attributes(entry) };
        for parent in parents.into_iter().chain([path]) {
            self.merged.insert(parent.to_owned(), parent != path || is_dir);
        }
        layer.touched.insert(path.to_owned());
        if entry.is_file() {
            layer.files.push(entry.clone());
        }
        layer.entries.push(entry);
    }

    fn file(&mut self, path: &str) -> Entry {
        let length = self.random.of(&[0, 1, 100, 4095, 4096, 9000]);
        let data: Vec<u8> = (0..length).map(|_| b'a' + self.random.below(26) as u8).collect();
        let entry = Entry::file(path, data).mode(self.random.of(&[0o644, 0o600, 0o755, 0o4755, 0o2711, 0o000]));
        match self.random.below(5) {
            0 => entry.xattr("user.note", format!("{}", self.random.below(1000))),
            _ => entry,
        }
    }

    fn attributes(&mut self, entry: Entry) -> Entry {
        let owner = |random: &mut Random| random.of(&[0, 0, 1, 1000, 65_534]);
        let (uid, gid) = (owner(&mut self.random), owner(&mut self.random));
        entry.owner(uid, gid).mtime(1_400_000_000 + self.random.below(300_000_000) as u64, 0)
    }

    /// Hides a path of lower layers, or what is in it.
    fn hide(&mut self, layer: &mut Contents, path: &str, entry: Entry, itself: bool) {
        self.forget_below(path);
        if itself {
            self.merged.remove(path);
        }
        layer.touched.insert(path.to_owned());
        layer.entries.push(entry);
    }

    fn forget_below(&mut self, path: &str) {
        let prefix = format!("{path}/");
        self.merged.retain(|known, _| !known.starts_with(&prefix));
    }
}

/// Whether a layer has an entry for this path or below it.
fn is_used(touched: &BTreeSet<String>, path: &str) -> bool {
    let prefix = format!("{path}/");
    touched.iter().any(|known| known == path || known.starts_with(&prefix))
}

/// A random image with the program `/sleep`.
pub fn random_image(seed: u64) -> Built {
    let mut generator = Generator { random: Random::new(seed), merged: BTreeMap::from([(TOP.to_owned(), true)]) };
    let base = Layer::of([Entry::file("sleep", busybox::program()).mode(0o755), Entry::dir(TOP).mode(0o751)]);
    let image = Image::new().layer(base).run(json!({"Entrypoint": ["/sleep"], "Cmd": ["1000"]}));
    let count = 2 + generator.random.below(6);
    (0..count).fold(image, |image, _| image.layer(generator.layer())).build()
}

/// One line per path: type and mode, owner, time, the first of its names, content and extended attributes.
fn describe(root: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![root.join(TOP)];
    while let Some(path) = waiting.pop() {
        let meta = fs::symlink_metadata(&path).must("a file");
        if meta.is_dir() {
            waiting.extend(fs::read_dir(&path).must("a directory").map(|entry| entry.must("an entry").path()));
        }
        found.insert(path.strip_prefix(root).must("below the root").display().to_string(), (path, meta));
    }
    // The kernel counts the names of a lower layer's file, also those that are hidden.
    let mut first_names = BTreeMap::new();
    for (name, (_, meta)) in &found {
        first_names.entry((meta.dev(), meta.ino())).or_insert(name);
    }
    let line = |(path, meta): &(PathBuf, Metadata)| {
        let content = match FileType::from_raw_mode(meta.mode()) {
            FileType::Directory => String::new(),
            FileType::RegularFile => image::digest(&fs::read(path).must("a file")),
            FileType::Symlink => fs::read_link(path).must("a link").display().to_string(),
            _ => format!("{:x}", meta.rdev()),
        };
        // A layer that uses a directory without describing it changes its time, also for umoci.
        let time = if meta.is_dir() { 0 } else { meta.mtime() };
        let (owner, first) = (format!("{}:{}", meta.uid(), meta.gid()), first_names[&(meta.dev(), meta.ino())]);
        format!("{:o} {owner} {time} {first} {content} {}", meta.mode(), xattrs(path))
    };
    found.iter().map(|(name, file)| (name.clone(), line(file))).collect()
}

fn xattrs(path: &Path) -> String {
    let mut names = [0u8; 4096];
    let length = rustix::fs::llistxattr(path, &mut names[..]).unwrap_or_default();
    let mut shown = Vec::new();
    for name in names[..length].split(|byte| *byte == 0).filter(|name| name.starts_with(b"user.")) {
        let mut value = [0u8; 4096];
        let length = rustix::fs::lgetxattr(path, name, &mut value[..]).must("an attribute");
        shown.push(format!("{}={}", String::from_utf8_lossy(name), String::from_utf8_lossy(&value[..length])));
    }
    shown.sort();
    shown.join(",")
}

fn by_umoci(image: &Built) -> BTreeMap<String, String> {
    let directory = tempfile::tempdir().must("a directory");
    let (layout, root) = (directory.path().join("layout"), directory.path().join("root"));
    let entries = image.layout(json!({"org.opencontainers.image.ref.name": "1"}));
    entries.iter().for_each(|entry| entry.write_below(&layout));
    let mut umoci = Command::new("umoci");
    let output = umoci.args(["raw", "unpack", "--image"]).arg(format!("{}:1", layout.display())).arg(&root).output();
    let output = output.must("umoci, which `make setup` installs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    describe(&root)
}

async fn by_container(node: &Node, plugin: &mut Plugin, reference: &str) -> BTreeMap<String, String> {
    let task = node.task(reference).build(plugin).await;
    plugin.started(&task).await;
    let shown = describe(Path::new(&format!("/proc/{}/root", plugin.init_pid(&task))));
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    shown
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().must(name))
}

#[tokio::test]
async fn random_images_are_what_umoci_makes_of_them() {
    let registry = Registry::start();
    let nodes = [Node::new(), Node::new()];
    // This process compares the owners of the files that it sees in the container.
    let userns = json!({"mode": "off"});
    let other = json!({"layer_format": "directory", "userns": userns});
    let mut plugins = [nodes[0].launch_with(json!({"userns": userns})).await, nodes[1].launch_with(other).await];
    let first = number("OCI_RS_RANDOM_SEED", 1);
    for seed in first..first + number("OCI_RS_RANDOM_IMAGES", 10) {
        let image = random_image(seed);
        let expected = by_umoci(&image);
        let reference = registry.push(&format!("random:{seed}"), &image);
        for (node, plugin) in nodes.iter().zip(&mut plugins) {
            let found = by_container(node, plugin, &reference).await;
            let paths: BTreeSet<&String> = expected.keys().chain(found.keys()).collect();
            let differences: Vec<_> = paths
                .into_iter()
                .filter(|path| expected.get(*path) != found.get(*path))
                .map(|path| format!("{path}: umoci {:?}, here {:?}", expected.get(path), found.get(path)))
                .collect();
            assert!(differences.is_empty(), "seed {seed}: {differences:#?}");
        }
    }
    for (node, plugin) in nodes.into_iter().zip(plugins) {
        node.finish(plugin).await;
    }
}
