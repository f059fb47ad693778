//! A store in a temporary directory, and short functions that pull into it.

use std::{
    collections::BTreeMap,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::{FileTypeExt, MetadataExt},
    },
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use fixtures::{
    image::{self, Built, Entry, Layer},
    registry::Registry,
};
use image_store::{
    Credentials, Image, LayerFormat, Limits, Progress, PullError, PullEvent, PullRequest, RegistryConfig, Silent,
    Store, StoreConfig,
};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen};

pub struct Bench {
    pub directory: Directory,
    pub registry: Registry,
    pub store: Store,
}

/// A temporary directory with a store.
pub struct Directory(tempfile::TempDir);

impl Directory {
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    fn images(&self) -> PathBuf {
        self.path().join("images")
    }
}

/// A pull that a test gives up ends its work on another thread, where it opens the store's lock and makes the file if
/// it is missing. Without the store's directory it cannot.
impl Drop for Directory {
    fn drop(&mut self) {
        // A test may have removed the directory.
        drop(std::fs::rename(self.images(), self.path().join("removed")));
    }
}

impl Bench {
    pub fn new() -> Self {
        Self::with(Vec::new())
    }

    pub fn with(registries: Vec<RegistryConfig>) -> Self {
        Self::full(registries, limits())
    }

    pub fn full(registries: Vec<RegistryConfig>, limits: Limits) -> Self {
        Self::open(|config| StoreConfig { limits, registries, ..config })
    }

    /// For tests of layers in directories.
    pub fn in_directories() -> Self {
        Self::open(|config| StoreConfig { layers: LayerFormat::Directory, ..config })
    }

    /// For tests of layers in EROFS images. `None`, with a message, if the kernel cannot mount them.
    #[allow(clippy::print_stdout, reason = "a skipped test says why")]
    pub fn in_images() -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("image");
        std::fs::write(&image, image_store::SampleImage::new().unwrap().bytes).unwrap();
        if let Err(error) = mount(&image) {
            println!("skipped: this kernel mounts no image from {}: {error}", directory.path().display());
            return None;
        }
        Some(Self::open(|config| StoreConfig { layers: LayerFormat::Erofs { zstd: true }, ..config }))
    }

    pub fn open(change: impl FnOnce(StoreConfig) -> StoreConfig) -> Self {
        let directory = Directory(tempfile::tempdir().unwrap());
        let store = Store::open(change(config(&directory.images()))).unwrap();
        Self { directory, registry: Registry::start(), store }
    }

    pub fn root(&self) -> PathBuf {
        self.directory.images()
    }

    /// The same directory, opened as by another process.
    pub fn second_store(&self) -> Store {
        Store::open(config(&self.root())).unwrap()
    }

    pub fn push(&self, name: &str, image: &Built) -> String {
        self.registry.push(name, image)
    }

    /// Pulls an image. Its layers are returned as directories; EROFS images are mounted.
    pub async fn pull(&self, reference: &str) -> Result<Image, PullError> {
        let mut image = self.lease(reference).await?;
        image.layers = image.layers.iter().map(|layer| shown(layer)).collect();
        Ok(image)
    }

    /// As [`Bench::pull`], with the layers as the store returns them.
    pub async fn lease(&self, reference: &str) -> Result<Image, PullError> {
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

    /// Checks that no staged layer and no lease is left.
    pub fn assert_clean(&self) {
        assert!(self.store.leases().unwrap().is_empty());
        for directory in std::fs::read_dir(self.root().join("staging")).unwrap() {
            let directory = directory.unwrap().path();
            let left: Vec<_> = std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
            assert!(left.is_empty(), "left in staging: {left:?}");
        }
    }

    pub fn layer_count(&self) -> usize {
        std::fs::read_dir(self.root().join("layers")).unwrap().count()
    }
}

/// The configuration of a store in this directory. `OCI_RS_LAYERS=erofs` runs all tests with layers in EROFS images.
pub fn config(root: &Path) -> StoreConfig {
    let layers = match std::env::var("OCI_RS_LAYERS").as_deref() {
        Ok("erofs") => LayerFormat::Erofs { zstd: true },
        Ok(other) => panic!("OCI_RS_LAYERS={other} is unknown"),
        Err(_) => LayerFormat::Directory,
    };
    StoreConfig { root: root.to_owned(), limits: limits(), layers, ..Default::default() }
}

fn mount(image: &Path) -> rustix::io::Result<OwnedFd> {
    let context = fsopen("erofs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "source", image)?;
    fsconfig_create(&context)?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}

/// A layer's files as a directory, for the lifetime of this value. An EROFS image is mounted.
pub struct Shown {
    path: PathBuf,
    _mount: Option<OwnedFd>,
}

impl Shown {
    /// The files in a directory or in an EROFS image.
    pub fn of(files: &Path) -> Self {
        if files.is_dir() {
            return Self { path: files.to_owned(), _mount: None };
        }
        let mount = mount(files).unwrap_or_else(|error| panic!("mounting {}: {error}", files.display()));
        // A path that other processes can open as well.
        let path = PathBuf::from(format!("/proc/{}/fd/{}/.", std::process::id(), mount.as_raw_fd()));
        Self { path, _mount: Some(mount) }
    }

    /// The files of a layer's directory in the store.
    pub fn layer(layer: &Path) -> Self {
        let image = layer.join("fs.erofs");
        Self::of(&if image.exists() { image } else { layer.join("fs") })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The files of one layer of an image, topmost first.
    pub fn nth(image: &Image, number: usize) -> Self {
        Self::of(&image.layers[number])
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path.join(name)).unwrap()
    }
}

/// A layer's files as a directory, for the lifetime of this process. The same layer always gives the same path.
pub fn shown(layer: &Path) -> PathBuf {
    if layer.is_dir() {
        return layer.to_owned();
    }
    static SHOWN: Mutex<BTreeMap<(u64, u64), Shown>> = Mutex::new(BTreeMap::new());
    let meta = std::fs::metadata(layer).unwrap();
    let mut all = SHOWN.lock().unwrap();
    all.entry((meta.dev(), meta.ino())).or_insert_with(|| Shown::of(layer)).path.clone()
}

/// The default limits with short pauses between attempts, and with time for a registry on a busy machine.
pub fn limits() -> Limits {
    Limits { retry_pause: Duration::from_millis(5), access_wait: Duration::from_secs(20), ..Default::default() }
}

pub fn request(reference: &str) -> PullRequest {
    PullRequest { idle_timeout: Duration::from_secs(20), ..PullRequest::new(reference.parse().unwrap()) }
}

pub fn credentials(user: &str, password: &str) -> Option<Credentials> {
    Some(Credentials { username: user.into(), password: password.into() })
}

/// An image with one small layer.
pub fn small(marker: &str) -> Built {
    image::Image::new().layer(Layer::of([Entry::dir("etc"), Entry::file("etc/marker", marker)])).build()
}

/// Bytes that do not compress, so that blobs have a known size.
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

/// A description of a tree: one line per path with every property that images contain.
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
        // XFS shows each ACL a second time, under a name of its own.
        .filter(|name| !name.is_empty() && !name.starts_with(b"trusted.SGI_ACL_"))
        .map(|name| {
            let mut value = vec![0u8; 64 << 10];
            let length = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
            format!("{}={}", String::from_utf8_lossy(name), hex::encode(&value[..length]))
        })
        .collect();
    found.sort();
    found.join(",")
}
