//! Taking over a named volume from the directory of another program.
//!
//! The data is copied to the directory `.import.<name>` beside the volumes, synced, and then renamed. So a volume is
//! absent or complete, and the source does not change. A leftover of a killed process is removed by the next import of
//! the same volume, or by the sweep of the next plugin. The lock of that directory keeps imports of one volume apart.
//! Starts with other volumes do not wait.

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use host::lock::{Locked, Wait, lock, open_directory};
use rustix::fs::{FlockOperation, flock, syncfs};

use super::{copy::copy_tree, writable::remove_tree};
use crate::error::{Context, RuntimeError};

/// The prefix of the directory of an import. No volume name begins with it.
const PREFIX: &str = ".import.";

/// A complete copy that is not a volume yet. Dropped, it is removed.
#[derive(Debug)]
pub struct VolumeImport {
    volume: PathBuf,
    staging: PathBuf,
    /// Held as long as the directory is in use.
    _lock: File,
}

impl VolumeImport {
    /// Copies `source` with owners, modes, times, extended attributes and hard links. `None` if the volume exists. It
    /// ends with an error soon after `cancelled` turns true.
    pub(crate) fn stage(
        volume: &Path,
        source: &Path,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Option<Self>, RuntimeError> {
        let action = || format!("copying {} to the volume {}", source.display(), volume.display());
        let (Some(parent), Some(name)) = (volume.parent(), volume.file_name()) else {
            return Err(io::Error::from(io::ErrorKind::InvalidInput)).context(action);
        };
        DirBuilder::new().recursive(true).mode(0o700).create(parent).context(action)?;
        let staging = parent.join(format!("{PREFIX}{}", name.to_string_lossy()));
        let Locked::Held(locked) = lock(&staging, Wait::Forever, true, || open_directory(&staging)).context(action)?
        else {
            return Err(io::Error::from(io::ErrorKind::NotFound)).context(action);
        };
        let import = Self { volume: volume.to_owned(), staging, _lock: locked };
        if volume.exists() {
            return Ok(None);
        }
        let data = import.data();
        remove_tree(&data)?;
        fs::create_dir(&data).context(action)?;
        failpoint::at("import-before-copy");
        copy_tree(source, &data, cancelled)?;
        failpoint::at("import-before-sync");
        File::open(&data).and_then(|data| Ok(syncfs(data)?)).context(action)?;
        Ok(Some(import))
    }

    /// Removes what killed processes left in the directory of all volumes. An import that is under way stays.
    pub(crate) fn sweep(volumes: &Path) -> Result<(), RuntimeError> {
        let action = || format!("sweeping {}", volumes.display());
        let entries = match fs::read_dir(volumes) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries.context(action)?,
        };
        for entry in entries {
            let entry = entry.context(action)?;
            let staging = entry.path();
            if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
                continue;
            }
            if let Locked::Held(_lock) = lock(&staging, Wait::No, false, || File::open(&staging)).context(action)? {
                remove_tree(&staging)?;
            }
        }
        Ok(())
    }

    /// Makes the copy the volume; `false` if another process made the volume meanwhile.
    pub fn commit(self) -> Result<bool, RuntimeError> {
        let action = || format!("making the volume {}", self.volume.display());
        let Some(parent) = self.volume.parent() else {
            return Err(io::Error::from(io::ErrorKind::InvalidInput)).context(action);
        };
        let parent = File::open(parent).context(action)?;
        // The lock of all creations of volumes.
        flock(&parent, FlockOperation::LockExclusive).context(action)?;
        if self.volume.exists() {
            return Ok(false);
        }
        failpoint::at("import-before-rename");
        fs::rename(self.data(), &self.volume).and_then(|()| parent.sync_all()).context(action)?;
        failpoint::at("import-before-cleanup");
        Ok(true)
    }

    fn data(&self) -> PathBuf {
        self.staging.join("data")
    }
}

impl Drop for VolumeImport {
    fn drop(&mut self) {
        if let Err(error) = remove_tree(&self.staging) {
            tracing::warn!(%error, "the copy of a volume was not removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::{
            fs::{MetadataExt, PermissionsExt, chown},
            net::UnixListener,
        },
        path::Path,
    };

    use rustix::fs::{XattrFlags, getxattr, setxattr};

    use super::VolumeImport;

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).expect("a directory").flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_volume_is_copied_once_with_everything() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let root = tempfile::tempdir().expect("a directory");
        let (source, volumes) = (root.path().join("_data"), root.path().join("data/volumes"));
        fs::create_dir_all(source.join("deep")).expect("a directory");
        fs::write(source.join("deep/file"), "content").expect("written");
        fs::hard_link(source.join("deep/file"), source.join("twin")).expect("linked");
        drop(UnixListener::bind(source.join("socket")).expect("a socket"));
        chown(source.join("twin"), Some(1000), Some(50)).expect("given");
        fs::set_permissions(source.join("twin"), fs::Permissions::from_mode(0o4750)).expect("set");
        setxattr(source.join("twin"), "user.kind", b"model", XattrFlags::empty()).expect("set");
        setxattr(source.join("deep"), "trusted.overlay.opaque", b"y", XattrFlags::empty()).expect("set");
        chown(&source, Some(1000), Some(50)).expect("given");
        fs::set_permissions(&source, fs::Permissions::from_mode(0o2770)).expect("set");

        let volume = volumes.join("db");
        // A process was killed during an earlier import.
        fs::create_dir_all(volumes.join(".import.db/data/half")).expect("a leftover");
        let staged = VolumeImport::stage(&volume, &source, &|| false).expect("copied").expect("an import");
        assert!(!volume.exists());
        assert!(staged.commit().expect("a volume"));
        assert_eq!((names(&volumes), names(&volume)), (vec!["db".to_owned()], names(&source)));
        let copied = fs::metadata(volume.join("twin")).expect("the file");
        assert_eq!((copied.mode() & 0o7777, copied.uid(), copied.gid(), copied.nlink()), (0o4750, 1000, 50, 2));
        let directory = fs::metadata(&volume).expect("the volume");
        assert_eq!((directory.mode() & 0o7777, directory.uid(), directory.gid()), (0o2770, 1000, 50));
        for (file, name) in [("twin", "user.kind"), ("deep", "trusted.overlay.opaque")] {
            let mut value = [0; 8];
            assert!(getxattr(volume.join(file), name, &mut value[..]).is_ok_and(|length| length > 0), "{name}");
        }
        assert_eq!(fs::read_to_string(source.join("twin")).expect("the source"), "content");
        let again = VolumeImport::stage(&volume, &source, &|| false);
        assert!(again.expect("nothing to do").is_none(), "it exists");
        assert_eq!(names(&volumes), ["db"]);
    }

    #[test]
    fn a_volume_that_another_process_made_meanwhile_stays() {
        let root = tempfile::tempdir().expect("a directory");
        let (source, volume) = (root.path().join("source"), root.path().join("volumes/db"));
        fs::create_dir(&source).expect("a directory");
        let staged = VolumeImport::stage(&volume, &source, &|| false).expect("copied").expect("an import");
        fs::create_dir(&volume).expect("the volume of another process");
        fs::write(volume.join("own"), "").expect("written");
        assert!(!staged.commit().expect("no volume"));
        assert_eq!(names(&root.path().join("volumes")), ["db"]);
        assert_eq!(names(&volume), ["own"]);
        let missing = root.path().join("missing");
        assert!(VolumeImport::stage(&root.path().join("volumes/x"), &missing, &|| false).is_err());
        assert_eq!(names(&root.path().join("volumes")), ["db"], "a failed import leaves nothing");
    }

    #[test]
    fn a_cancelled_copy_ends_before_the_next_file_and_leaves_nothing() {
        let root = tempfile::tempdir().expect("a directory");
        let (source, volumes) = (root.path().join("source"), root.path().join("volumes"));
        fs::create_dir(&source).expect("a directory");
        for name in 0..9 {
            fs::write(source.join(name.to_string()), "").expect("written");
        }
        let asked = std::cell::Cell::new(0);
        let cancelled = || asked.replace(asked.get() + 1) == 3;
        let error = VolumeImport::stage(&volumes.join("db"), &source, &cancelled).expect_err("cancelled");
        assert!(error.to_string().contains("cancelled") && asked.get() == 4, "{error}");
        assert!(names(&volumes).is_empty());
    }

    #[test]
    fn the_sweep_removes_leftovers_and_no_import_under_way() {
        let root = tempfile::tempdir().expect("a directory");
        let (source, volumes) = (root.path().join("source"), root.path().join("volumes"));
        VolumeImport::sweep(&volumes).expect("nothing to sweep");
        fs::create_dir(&source).expect("a directory");
        fs::create_dir_all(volumes.join(".import.old/data/half")).expect("a leftover");
        fs::create_dir_all(volumes.join("kept")).expect("a volume");
        let staged = VolumeImport::stage(&volumes.join("db"), &source, &|| false).expect("copied").expect("an import");
        VolumeImport::sweep(&volumes).expect("swept");
        assert_eq!(names(&volumes), [".import.db", "kept"]);
        assert!(staged.commit().expect("a volume"));
        assert_eq!(names(&volumes), ["db", "kept"]);
    }
}
