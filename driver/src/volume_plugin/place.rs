//! Where a volume is on disk.
//!
//! `<volumes>/<id>` is what tasks mount: the volume's directory, or the directory on which it is mounted.
//! `<volumes>/.oci-rs/<id>/` is the plugin's own. The lock of that directory is the lock of the volume. It contains:
//!
//! - `volume.json`, the record of a complete volume, or `removed.json` in its place once the removal has begun;
//! - `data`, the directory of a volume that is not in its final place yet, or not any more, or that is mounted there
//!   because it is read-only;
//! - `volume.ext4`, `volume.xfs` or, encrypted, `volume.luks`, the file system of a volume with a limit.

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
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

/// Whether a text is the id of a volume. It becomes the name of directories.
pub fn is_id(text: &str) -> bool {
    /// The length of a UUID. Nomad uses no other ids.
    const LENGTH: usize = 36;
    text.len() == LENGTH && text.chars().all(|digit| digit.is_ascii_hexdigit() || digit == '-')
}

/// Whether a directory with this mode and owner keeps all users but root from the files below it. An entry of an access
/// control list needs a bit of the group too (acl(5)).
fn keeps_users_out(mode: u32, owner: u32) -> bool {
    owner == 0 && mode & 0o011 == 0
}

/// What the file of a volume with a file system of its own contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Format {
    /// Its file system.
    pub file_system: FileSystem,
    /// Whether that is behind a LUKS header, and encrypted.
    pub is_encrypted: bool,
}

impl Format {
    /// The size of a LUKS header in bytes.
    pub const LUKS_HEADER: u64 = 4 << 20;
    /// One format for each name that the file can have.
    pub const NAMES: [Self; 3] = [
        Self { file_system: FileSystem::Ext4, is_encrypted: false },
        Self { file_system: FileSystem::Xfs, is_encrypted: false },
        Self { file_system: FileSystem::Ext4, is_encrypted: true },
    ];

    /// The size of the sectors of the file's loop device; 0 is the kernel's choice. An xfs file system and a LUKS
    /// header were made for sectors of 512 bytes. The kernel's choice changes when the file shares blocks with a
    /// clone.
    pub fn sector(self) -> u32 {
        match self {
            Self { file_system: FileSystem::Ext4, is_encrypted: false } => 0,
            _ => 512,
        }
    }

    /// The number of bytes before the file system.
    pub fn header(self) -> u64 {
        if self.is_encrypted { Self::LUKS_HEADER } else { 0 }
    }
}

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
        self.own_parent().join(&self.id)
    }

    /// The plugin's own directory for all volumes.
    pub fn own_parent(&self) -> PathBuf {
        self.volumes.join(OWN)
    }

    /// The record.
    pub fn record(&self) -> PathBuf {
        self.own().join("volume.json")
    }

    /// The mark of a removal that has begun.
    pub fn mark(&self) -> PathBuf {
        self.own().join("removed.json")
    }

    /// The directory of a volume that is not in its final place, or that is mounted there.
    pub fn data(&self) -> PathBuf {
        self.own().join("data")
    }

    /// The file with the volume's file system.
    pub fn file(&self, format: Format) -> PathBuf {
        let kind = if format.is_encrypted { "luks" } else { format.file_system.name() };
        self.own().join(format!("volume.{kind}"))
    }

    /// Waits for the lock of the volume, and makes the plugin's own directory for it.
    pub fn lock(&self) -> Result<File, PluginError> {
        let action = || format!("making {}", self.own().display());
        let parent = self.own_parent();
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

    /// Takes the lock of the volume, if the plugin has a directory for it and no call works on it.
    pub fn lock_now(&self) -> Result<Option<File>, PluginError> {
        let own = self.own();
        let locked = lock(&own, Wait::No, false, || File::open(&own));
        match locked.context(|| format!("locking {}", own.display()))? {
            Locked::Held(locked) => Ok(Some(locked)),
            Locked::Busy | Locked::Missing => Ok(None),
        }
    }

    /// The places of all other volumes for which the plugin has a directory.
    pub fn others(&self) -> Result<Vec<Self>, PluginError> {
        let mut all = Self::all(&self.volumes)?;
        all.retain(|place| place.id != self.id);
        Ok(all)
    }

    /// The places of all volumes of a directory.
    pub fn all(volumes: &Path) -> Result<Vec<Self>, PluginError> {
        let own = volumes.join(OWN);
        let action = || format!("listing {}", own.display());
        let entries = match fs::read_dir(&own) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.context(action)?,
        };
        let mut places = Vec::new();
        for entry in entries {
            let name = entry.context(action)?.file_name().into_string();
            places.extend(name.ok().filter(|name| is_id(name)).map(|id| Self::new(volumes.to_owned(), id)));
        }
        Ok(places)
    }

    /// Whether only root reaches the volumes by their paths, because of one of the directories above them.
    pub fn is_private(&self) -> Result<bool, PluginError> {
        let action = || format!("looking at {}", self.volumes.display());
        // Links are resolved, because the directories that count are those on the way of the kernel.
        for directory in self.volumes.canonicalize().context(action)?.ancestors() {
            let found = fs::metadata(directory).context(action)?;
            if keeps_users_out(found.mode(), found.uid()) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// What has the content of a volume that is mounted at its path, if it exists.
    fn existing_content(&self) -> Result<Option<PathBuf>, PluginError> {
        let files = Format::NAMES.map(|format| self.file(format));
        for file in files.into_iter().chain([self.data()]) {
            if file.try_exists().context(|| format!("looking at {}", file.display()))? {
                return Ok(Some(file));
            }
        }
        Ok(None)
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

    /// Fails if the volume has been at its path, but its record is gone, and `content` would remove its content. A
    /// volume that was never complete has never been at its path, so no task has written to it.
    pub fn check_not_lost(&self) -> Result<(), PluginError> {
        if !self.is_taken()? {
            return Ok(());
        }
        let Some(file) = self.existing_content()? else { return Ok(()) };
        let (record, path) = (self.record(), self.path());
        Err(PluginError::new(format!(
            "the record {} is gone, and the content of the volume is kept: restore the record from a backup; or \
             unmount {path} and remove it, and move {} away, which has the content",
            record.display(),
            file.display(),
            path = path.display(),
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_directory_of_root_alone_keeps_users_out() {
        for (mode, owner, keeps) in [
            (0o40_700, 0, true),
            (0o40_600, 0, true),
            (0o40_766, 0, true),
            (0o40_711, 0, false),
            (0o40_710, 0, false),
            (0o40_701, 0, false),
            (0o41_777, 0, false),
            (0o40_700, 1000, false),
        ] {
            assert_eq!(keeps_users_out(mode, owner), keeps, "{mode:o} {owner}");
        }
    }

    #[test]
    fn a_file_system_without_a_record_is_kept_once_the_volume_was_at_its_path() {
        let volumes = tempfile::tempdir().unwrap();
        let place = Place::new(volumes.path().to_owned(), "4d9f3c3e-0f0e-4f5c-9a55-4a3c0e6b1d01".to_owned());
        assert!(place.check_not_lost().is_ok());
        fs::create_dir_all(place.own()).unwrap();
        let xfs = place.file(Format::NAMES[1]);
        fs::write(&xfs, "").unwrap();
        assert!(place.check_not_lost().is_ok(), "a killed call has left it");
        fs::create_dir(place.path()).unwrap();
        let error = place.check_not_lost().unwrap_err().to_string();
        assert!(error.contains("volume.json is gone") && error.contains("volume.xfs away"), "{error}");
        fs::remove_file(&xfs).unwrap();
        fs::create_dir(place.data()).unwrap();
        let error = place.check_not_lost().unwrap_err().to_string();
        assert!(error.contains("volume.json is gone") && error.contains("data away"), "{error}");
        fs::remove_dir(place.data()).unwrap();
        assert!(place.check_not_lost().is_ok(), "there is nothing to keep but a directory, which stays");
    }
}
