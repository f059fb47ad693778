//! A store in a folder that goes away, and short ways to pull into it.

use std::{
    collections::BTreeMap,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use image_store::{
    Credentials, Image, Limits, Progress, PullError, PullEvent, PullRequest, RegistryConfig, Silent, Store, StoreConfig,
};
use kit::{
    image::{self, Built, Entry, Layer},
    registry::Registry,
};

pub struct Bench {
    pub folder: tempfile::TempDir,
    pub registry: Registry,
    pub store: Store,
}

impl Bench {
    pub fn new() -> Self {
        Self::with(Vec::new())
    }

    pub fn with(registries: Vec<RegistryConfig>) -> Self {
        Self::full(registries, limits())
    }

    pub fn full(registries: Vec<RegistryConfig>, limits: Limits) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store =
            Store::open(StoreConfig { root: folder.path().join("images"), limits, registries, ..Default::default() })
                .unwrap();
        Self { folder, registry: Registry::start(), store }
    }

    pub fn root(&self) -> PathBuf {
        self.folder.path().join("images")
    }

    /// The same folder as another process would open it.
    pub fn second_store(&self) -> Store {
        Store::open(StoreConfig { root: self.root(), limits: limits(), ..Default::default() }).unwrap()
    }

    pub fn push(&self, name: &str, image: &Built) -> String {
        self.registry.push(name, image)
    }

    pub async fn pull(&self, reference: &str) -> Result<Image, PullError> {
        self.store.acquire(request(reference), "task", Arc::new(Silent)).await
    }

    /// Pushes and pulls an image of one layer.
    pub async fn unpack(&self, entries: impl IntoIterator<Item = Entry>) -> Result<Image, PullError> {
        self.unpack_layers([Layer::of(entries)]).await
    }

    pub async fn unpack_layers(&self, layers: impl IntoIterator<Item = Layer>) -> Result<Image, PullError> {
        let image = layers.into_iter().fold(image::Image::new(), image::Image::layer);
        let reference = self.push("test:1", &image.build());
        self.pull(&reference).await
    }

    /// Nothing half-done is left, and no lease.
    pub fn assert_clean(&self) {
        assert!(self.store.leases().unwrap().is_empty());
        for folder in std::fs::read_dir(self.root().join("staging")).unwrap() {
            let folder = folder.unwrap().path();
            let left: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
            assert!(left.is_empty(), "left in staging: {left:?}");
        }
    }

    pub fn layer_count(&self) -> usize {
        std::fs::read_dir(self.root().join("layers")).unwrap().count()
    }
}

/// Quick to retry, otherwise as in life.
pub fn limits() -> Limits {
    Limits { retry_pause: Duration::from_millis(5), ..Default::default() }
}

pub fn request(reference: &str) -> PullRequest {
    PullRequest { inactivity: Duration::from_secs(20), ..PullRequest::new(reference.parse().unwrap()) }
}

pub fn credentials(user: &str, password: &str) -> Option<Credentials> {
    Some(Credentials { username: user.into(), password: password.into() })
}

/// An image with one small layer.
pub fn small(marker: &str) -> Built {
    image::Image::new().layer(Layer::of([Entry::dir("etc"), Entry::file("etc/marker", marker)])).build()
}

/// Bytes that do not compress, so that blobs are as large as they say.
pub fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

#[derive(Default)]
pub struct Recorder(pub Mutex<Vec<PullEvent>>);

impl Progress for Recorder {
    fn report(&self, event: PullEvent) {
        self.0.lock().unwrap().push(event);
    }
}

/// What a tree looks like: one line per path, everything that images carry.
pub fn describe(root: &Path) -> BTreeMap<String, String> {
    let mut lines = BTreeMap::new();
    describe_into(root, root, &mut lines);
    lines
}

fn describe_into(root: &Path, path: &Path, lines: &mut BTreeMap<String, String>) {
    let meta = std::fs::symlink_metadata(path).unwrap();
    let kind = meta.file_type();
    let content = if kind.is_file() {
        image::digest(&std::fs::read(path).unwrap())
    } else if kind.is_symlink() {
        format!("-> {}", std::fs::read_link(path).unwrap().display())
    } else if kind.is_char_device() || kind.is_block_device() {
        format!("device {:x}", meta.rdev())
    } else {
        String::new()
    };
    let links = if kind.is_dir() { 0 } else { meta.nlink() };
    let line = format!(
        "{:o} {}:{} {}.{:09} links {links} {content} {}",
        meta.mode(),
        meta.uid(),
        meta.gid(),
        meta.mtime(),
        meta.mtime_nsec(),
        xattrs(path)
    );
    lines.insert(path.strip_prefix(root).unwrap().display().to_string(), line);
    if kind.is_dir() {
        for entry in std::fs::read_dir(path).unwrap() {
            describe_into(root, &entry.unwrap().path(), lines);
        }
    }
}

pub fn xattrs(path: &Path) -> String {
    let mut names = vec![0u8; 4096];
    let length = rustix::fs::llistxattr(path, &mut names[..]).unwrap();
    let mut found: Vec<String> = names[..length]
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| {
            let mut value = vec![0u8; 4096];
            let length = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
            format!("{}={}", String::from_utf8_lossy(name), hex::encode(&value[..length]))
        })
        .collect();
    found.sort();
    found.join(",")
}
