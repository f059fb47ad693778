//! Where a volume is on disk.
//!
//! `<volumes>/<id>` is what tasks mount: the volume's directory, or the directory on which it is mounted.
//! `<volumes>/.oci-rs/<id>/` is the plugin's own. The lock of that directory is the lock of the volume. It contains:
//!
//! - `volume.json`, the record of a complete volume, or `removed.json` in its place once the removal has begun;
//! - `data`, the directory of a volume that is not in its final place yet, or not any more;
//! - `volume.ext4` or `volume.xfs`, the file system of a volume with a limit.

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use host::{
    Context,
    lock::{Locked, Wait, lock, open_directory},
};
use runtime::file_system::FileSystem;

use super::error::PluginError;

/// The plugin's own directory in the directory of all volumes. No id of a volume begins with a dot.
const OWN: &str = ".oci-rs";

/// The place of one volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    volumes: PathBuf,
    id: String,
}

impl Place {
    /// The place of the volume with this checked id.
    pub fn new(volumes: PathBuf, id: String) -> Self {
        Self { volumes, id }
    }

    /// The id of the volume.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The directory of all volumes.
    pub fn volumes(&self) -> &Path {
        &self.volumes
    }

    /// What tasks mount.
    pub fn path(&self) -> PathBuf {
        self.volumes.join(&self.id)
    }

    /// The plugin's own directory for the volume.
    pub fn own(&self) -> PathBuf {
        self.volumes.join(OWN).join(&self.id)
    }

    /// The record.
    pub fn record(&self) -> PathBuf {
        self.own().join("volume.json")
    }

    /// The mark of a removal that has begun.
    pub fn mark(&self) -> PathBuf {
        self.own().join("removed.json")
    }

    /// The directory of a volume that is not in its final place.
    pub fn data(&self) -> PathBuf {
        self.own().join("data")
    }

    /// The file with the volume's file system.
    pub fn file(&self, kind: FileSystem) -> PathBuf {
        self.own().join(format!("volume.{}", kind.name()))
    }

    /// Waits for the lock of the volume, and makes the plugin's own directory for it.
    pub fn lock(&self) -> Result<File, PluginError> {
        let action = || format!("making {}", self.own().display());
        let parent = self.volumes.join(OWN);
        DirBuilder::new().recursive(true).mode(0o700).create(&parent).context(action)?;
        let own = self.own();
        match lock(&own, Wait::Forever, true, || open_directory(&own)).context(action)? {
            Locked::Held(locked) => Ok(locked),
            Locked::Busy | Locked::Missing => Err(io::Error::from(io::ErrorKind::NotFound)).context(action)?,
        }
    }

    /// Waits for the lock of the volume, if the plugin has a directory for it.
    pub fn lock_existing(&self) -> Result<Option<File>, PluginError> {
        let own = self.own();
        let locked = lock(&own, Wait::Forever, false, || File::open(&own));
        match locked.context(|| format!("locking {}", own.display()))? {
            Locked::Held(locked) => Ok(Some(locked)),
            Locked::Busy | Locked::Missing => Ok(None),
        }
    }

    /// Whether something has the name that tasks mount.
    pub fn is_taken(&self) -> Result<bool, PluginError> {
        match fs::symlink_metadata(self.path()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            found => Ok(found.map(|_| true).context(|| format!("looking at {}", self.path().display()))?),
        }
    }

    /// An error about a directory in the place of the volume that this plugin has not recorded.
    pub fn foreign(&self) -> PluginError {
        let path = self.path();
        PluginError::new(format!(
            "{} exists, and this plugin has no record of it: move it away, or remove it if it is not needed",
            path.display()
        ))
    }
}
