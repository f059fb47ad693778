//! The paths inside a store, its format, and the store lock that several processes share.
//!
//! Names are made only of validated digests, of hashes, and of counters of this process.

use std::{
    fs::{DirBuilder, File},
    io,
    os::{fd::OwnedFd, unix::fs::DirBuilderExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use layer::Digest;
use rustix::fs::{FlockOperation, Mode, OFlags};

use crate::{
    error::StoreError,
    files::{self, Durability},
    lease::LeaseOwner,
    reference::Reference,
};

/// The format of everything below the root. A change that an older build would misread needs a new one.
const FORMAT: &str = "oci-rs image store 2\n";
/// The format before, which has no layers in EROFS images. This build reads it unchanged.
const EARLIER: &str = "oci-rs image store 1\n";

/// The directories of a store.
pub(super) const DIRECTORIES: [&str; 10] =
    ["layers", "partial", "fixups", "configs", "manifests", "images", "leases", "locks", "staging", "trash"];
/// What else may lie beside them.
pub(super) const FILES: [&str; 3] = ["VERSION", "lock", "empty"];

/// The form of a layer's files on disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LayerFormat {
    /// Files in a directory; works on every kernel. EROFS images that exist already are not used, because this kernel
    /// may not be able to mount them.
    #[default]
    Directory,
    /// One file with an EROFS file system, except for layers of very many files. For kernels that mount such a file,
    /// and that mount an overlay over a detached mount (Linux 6.15). The store does not check the kernel.
    Erofs {
        /// The kernel reads such a file if its data is compressed with zstd. Other native images are not used without
        /// it.
        zstd: bool,
    },
}

/// Paths inside one store.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    root: PathBuf,
    /// Opened before the first write, so that syncfs(2) reports every write that failed since.
    root_fd: Arc<OwnedFd>,
    /// The form of new layers.
    pub(crate) format: LayerFormat,
}

impl Layout {
    /// Makes the directories of a new store, or checks the format of an existing one.
    pub(crate) fn open(root: &Path, format: LayerFormat) -> Result<Layout, StoreError> {
        // Images contain setuid programs: other users must not even list them (CVE-2021-41091).
        make_directory(root)?;
        let layout = Layout { root: root.to_owned(), root_fd: Arc::new(open_directory(root)?), format };
        for directory in DIRECTORIES {
            make_directory(&root.join(directory))?;
        }
        let _adding = layout.lock_shared()?;
        match layout.version()? {
            Version::Current => {}
            Version::Missing | Version::Earlier => layout.write_version()?,
            Version::Other(found) => {
                return Err(StoreError::Version { path: root.to_owned(), found, expected: FORMAT.trim_ascii_end() });
            }
        }
        Ok(layout)
    }

    /// The paths of an existing store. Makes and checks nothing.
    pub(super) fn of(root: &Path) -> Result<Layout, StoreError> {
        let format = LayerFormat::default();
        Ok(Layout { root: root.to_owned(), root_fd: Arc::new(open_directory(root)?), format })
    }

    /// The format on disk.
    pub(super) fn version(&self) -> Result<Version, StoreError> {
        let path = self.root.join("VERSION");
        match std::fs::read(&path) {
            Ok(found) if found == FORMAT.as_bytes() => Ok(Version::Current),
            Ok(found) if found == EARLIER.as_bytes() => Ok(Version::Earlier),
            Ok(found) => Ok(Version::Other(String::from_utf8_lossy(&found).trim().chars().take(100).collect())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Version::Missing),
            Err(error) => Err(StoreError::io("reading", path)(error)),
        }
    }

    pub(super) fn write_version(&self) -> Result<(), StoreError> {
        files::write(&self.root.join("VERSION"), FORMAT.as_bytes(), Durability::Now)
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn root_fd(&self) -> &OwnedFd {
        &self.root_fd
    }

    pub(crate) fn directory(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub(crate) fn layer(&self, diff_id: &Digest) -> PathBuf {
        self.root.join("layers").join(diff_id.hex())
    }

    /// A layer that is not complete.
    pub(crate) fn partial(&self, key: &Digest) -> PathBuf {
        self.root.join("partial").join(key.hex())
    }

    /// The lock file of a layer that is being made.
    pub(crate) fn layer_lock(&self, diff_id: &Digest) -> PathBuf {
        self.root.join("locks").join(diff_id.hex())
    }

    /// A layer of implied directories.
    pub(crate) fn implied(&self, key: &Digest) -> PathBuf {
        self.root.join("fixups").join(key.hex())
    }

    pub(crate) fn config(&self, digest: &Digest) -> PathBuf {
        self.root.join("configs").join(digest.hex())
    }

    pub(crate) fn manifest(&self, digest: &Digest) -> PathBuf {
        self.root.join("manifests").join(digest.hex())
    }

    /// The record of a pulled image.
    pub(crate) fn image(&self, reference: &Reference) -> PathBuf {
        self.record("images", &reference.to_string())
    }

    /// The record of a loaded image; it lies beside the record of a pulled image of the same name.
    pub(crate) fn loaded(&self, reference: &Reference, manifest: &Digest) -> PathBuf {
        self.record("images", &format!("loaded {reference} {manifest}"))
    }

    pub(crate) fn lease(&self, owner: &LeaseOwner) -> PathBuf {
        self.record("leases", &owner.to_string())
    }

    /// Names come from outside and may contain anything. The file is therefore named after the hash of the name.
    fn record(&self, directory: &str, name: &str) -> PathBuf {
        self.root.join(directory).join(format!("{}.json", Digest::sha256(name.as_bytes()).hex()))
    }

    /// A fresh name below `trash`.
    pub(crate) fn trash(&self) -> PathBuf {
        self.root.join("trash").join(files::unique())
    }

    /// The store lock for a process that adds records and layers.
    pub(crate) fn lock_shared(&self) -> Result<StoreLock, StoreError> {
        self.lock(FlockOperation::LockShared)
    }

    /// The store lock for a process that removes or rewrites records and layers. Excludes every other holder.
    pub(crate) fn lock_exclusive(&self) -> Result<StoreLock, StoreError> {
        self.lock(FlockOperation::LockExclusive)
    }

    fn lock(&self, operation: FlockOperation) -> Result<StoreLock, StoreError> {
        let path = self.root.join("lock");
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(StoreError::io("opening", &path))?;
        rustix::io::retry_on_intr(|| rustix::fs::flock(&file, operation)).map_err(StoreError::io("locking", &path))?;
        Ok(StoreLock { _file: file })
    }
}

/// The content of `VERSION`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Version {
    /// The format that this build writes.
    Current,
    /// The format of an earlier build, which this build reads.
    Earlier,
    /// There is no such file.
    Missing,
    /// Any other text.
    Other(String),
}

/// The held store lock, released when dropped.
#[must_use]
#[derive(Debug)]
pub(crate) struct StoreLock {
    _file: File,
}

pub(super) fn make_directory(path: &Path) -> Result<(), StoreError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(StoreError::io("creating", path))?;
    let directory = open_directory(path)?;
    let stat = rustix::fs::fstat(&directory).map_err(StoreError::io("examining", path))?;
    if stat.st_mode & 0o077 != 0 {
        rustix::fs::fchmod(&directory, Mode::from_raw_mode(0o700))
            .map_err(StoreError::io("closing to others", path))?;
    }
    Ok(())
}

/// Opens a directory of the store. Refuses a symbolic link in its place.
pub(crate) fn open_directory(path: &Path) -> Result<OwnedFd, StoreError> {
    try_open_directory(path).map_err(StoreError::io("opening", path))
}

/// As [`open_directory`], for [`host::lock`].
pub(super) fn try_open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// The id of the running boot. Files of another boot that were not synced may be torn.
pub(crate) fn boot_id() -> Result<String, StoreError> {
    host::boot::id().map_err(StoreError::io("reading", host::boot::PATH))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn opens_twice_and_stays_private() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("images");
        Layout::open(&root, LayerFormat::Directory).unwrap();
        std::fs::set_permissions(&root, PermissionsExt::from_mode(0o755)).unwrap();
        Layout::open(&root, LayerFormat::Directory).unwrap();
        assert_eq!(std::fs::metadata(&root).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn takes_over_an_earlier_format() {
        let directory = tempfile::tempdir().unwrap();
        let version = directory.path().join("VERSION");
        std::fs::write(&version, EARLIER).unwrap();
        Layout::open(directory.path(), LayerFormat::Directory).unwrap();
        assert_eq!(std::fs::read_to_string(&version).unwrap(), FORMAT);
    }

    #[test]
    fn refuses_another_format() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("VERSION"), "oci-rs image store 9\n").unwrap();
        let error = Layout::open(directory.path(), LayerFormat::Directory).unwrap_err().to_string();
        assert!(error.contains("store 9") && error.contains("store 2"), "{error}");
    }

    #[test]
    fn lease_names_cannot_leave_their_directory() {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::open(directory.path(), LayerFormat::Directory).unwrap();
        let path = layout.lease(&"../../etc/passwd".into());
        assert_eq!(path.parent().unwrap(), directory.path().join("leases"));
    }
}
