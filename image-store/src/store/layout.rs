//! Where things are inside a store, and the lock that several processes share.
//!
//! Names are made only of digests that were validated, of hashes, and of our own counters.

use std::{
    fs::{DirBuilder, File},
    io,
    os::{fd::OwnedFd, unix::fs::DirBuilderExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::fs::{FlockOperation, Mode, OFlags};

use crate::{
    commit::{self, Durability},
    config::LayerFormat,
    digest::Digest,
    error::StoreError,
    lease::LeaseOwner,
    reference::Reference,
};

/// The format of everything below the root. A change that older code would misread needs a new one.
const FORMAT: &str = "oci-rs image store 2\n";
/// The one before, which had no layers in images and is read as it is.
const EARLIER: &str = "oci-rs image store 1\n";

/// The directories of a store.
pub(super) const DIRECTORIES: [&str; 9] =
    ["layers", "fixups", "configs", "manifests", "images", "leases", "locks", "staging", "trash"];
/// What else may stand beside them.
pub(super) const FILES: [&str; 3] = ["VERSION", "lock", "empty"];

/// Paths inside one store.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    root: PathBuf,
    /// Open from before the first write, so that the kernel tells it of every write that fails.
    root_fd: Arc<OwnedFd>,
    /// What new layers become.
    pub(crate) layers: LayerFormat,
}

impl Layout {
    /// Makes the directories of a new store, or checks the format of an old one.
    pub(crate) fn open(root: &Path, layers: LayerFormat) -> Result<Layout, StoreError> {
        // Images hold setuid programs: nobody but us may even look (CVE-2021-41091).
        make_directory(root)?;
        let layout = Layout { root: root.to_owned(), root_fd: Arc::new(open_directory(root)?), layers };
        for directory in DIRECTORIES {
            make_directory(&root.join(directory))?;
        }
        let _adding = layout.lock(false)?;
        match layout.version()? {
            Version::Ours => {}
            Version::Missing | Version::Earlier => layout.write_version()?,
            Version::Other(found) => {
                return Err(StoreError::Version { path: root.to_owned(), found, expected: FORMAT.trim_ascii_end() });
            }
        }
        Ok(layout)
    }

    /// Paths of a store as it is: nothing is made and nothing is checked.
    pub(super) fn of(root: &Path) -> Result<Layout, StoreError> {
        let layers = LayerFormat::default();
        Ok(Layout { root: root.to_owned(), root_fd: Arc::new(open_directory(root)?), layers })
    }

    /// The format on disk.
    pub(super) fn version(&self) -> Result<Version, StoreError> {
        let path = self.root.join("VERSION");
        match std::fs::read(&path) {
            Ok(found) if found == FORMAT.as_bytes() => Ok(Version::Ours),
            Ok(found) if found == EARLIER.as_bytes() => Ok(Version::Earlier),
            Ok(found) => Ok(Version::Other(String::from_utf8_lossy(&found).trim().chars().take(100).collect())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Version::Missing),
            Err(error) => Err(StoreError::io("reading", path)(error)),
        }
    }

    pub(super) fn write_version(&self) -> Result<(), StoreError> {
        commit::write(&self.root.join("VERSION"), FORMAT.as_bytes(), Durability::Now)
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

    /// The lock of whoever makes a layer.
    pub(crate) fn layer_lock(&self, diff_id: &Digest) -> PathBuf {
        self.root.join("locks").join(diff_id.hex())
    }

    pub(crate) fn fixup(&self, key: &Digest) -> PathBuf {
        self.root.join("fixups").join(key.hex())
    }

    pub(crate) fn config(&self, digest: &Digest) -> PathBuf {
        self.root.join("configs").join(digest.hex())
    }

    pub(crate) fn manifest(&self, digest: &Digest) -> PathBuf {
        self.root.join("manifests").join(digest.hex())
    }

    pub(crate) fn image(&self, reference: &Reference) -> PathBuf {
        self.record("images", &reference.to_string())
    }

    /// Beside the record of a pulled image of the same name.
    pub(crate) fn loaded(&self, reference: &Reference, manifest: &Digest) -> PathBuf {
        self.record("images", &format!("loaded {reference} {manifest}"))
    }

    pub(crate) fn lease(&self, owner: &LeaseOwner) -> PathBuf {
        self.record("leases", &owner.to_string())
    }

    /// Names come from outside and may hold anything, so the file is named after their hash.
    fn record(&self, directory: &str, name: &str) -> PathBuf {
        self.root.join(directory).join(format!("{}.json", Digest::sha256(name.as_bytes()).hex()))
    }

    /// A fresh name below `trash`.
    pub(crate) fn trash(&self) -> PathBuf {
        self.root.join("trash").join(commit::unique())
    }

    /// Held while records and layers are put in relation: shared by those who add, alone by those who take away.
    pub(crate) fn lock(&self, alone: bool) -> Result<Lock, StoreError> {
        let path = self.root.join("lock");
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(StoreError::io("opening", &path))?;
        let operation = if alone { FlockOperation::LockExclusive } else { FlockOperation::LockShared };
        rustix::io::retry_on_intr(|| rustix::fs::flock(&file, operation)).map_err(StoreError::io("locking", &path))?;
        Ok(Lock { _file: file })
    }
}

/// What `VERSION` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Version {
    /// What this build writes.
    Ours,
    /// What an earlier build wrote and this one reads.
    Earlier,
    /// There is no such file.
    Missing,
    /// Something else.
    Other(String),
}

/// The store's lock, released when dropped.
#[must_use]
#[derive(Debug)]
pub(crate) struct Lock {
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

/// Opens a directory of ours; a link in its place is refused.
pub(crate) fn open_directory(path: &Path) -> Result<OwnedFd, StoreError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map_err(StoreError::io("opening", path))
}

/// This boot's id: what was written in another boot and not synced may be torn.
pub(crate) fn boot_id() -> Result<String, StoreError> {
    let path = "/proc/sys/kernel/random/boot_id";
    let id = std::fs::read_to_string(path).map_err(StoreError::io("reading", path))?;
    Ok(id.trim().to_owned())
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
