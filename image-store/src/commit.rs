//! The one way in which anything of the store comes into being: a temporary name in the same directory, then a rename.
//!
//! After a kill at any point a file is absent, complete, or a temporary that the next sweep removes. [`Durability`] says whether
//! a power cut may undo it: records that can be made again are written without waiting for the disk, their readers treat a torn
//! file as absent, and the store's background `syncfs` makes them last.

use std::{
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::fs::{CWD, RenameFlags};
use serde::{Serialize, de::DeserializeOwned};

use crate::error::StoreError;

/// Begins the names of files that are not committed yet.
pub(crate) const TEMPORARY: &str = ".tmp-";

/// When a file must be able to survive a power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    /// Before the call returns: file and directory are synced.
    Now,
    /// At the next background sync.
    Later,
}

/// A name that no other process or thread uses.
pub(crate) fn unique() -> String {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    format!("{}-{:x}-{count}", std::process::id(), now.as_nanos())
}

/// Writes a file whole or not at all, replacing an older one.
pub(crate) fn write(path: &Path, bytes: &[u8], durability: Durability) -> Result<(), StoreError> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let temporary = directory.join(format!("{TEMPORARY}{}", unique()));
    let result = write_and_rename(&temporary, path, bytes, durability);
    if result.is_err()
        && let Err(error) = std::fs::remove_file(&temporary)
    {
        tracing::debug!(path = %temporary.display(), %error, "left for the sweep");
    }
    result
}

fn write_and_rename(temporary: &Path, path: &Path, bytes: &[u8], durability: Durability) -> Result<(), StoreError> {
    let mut file = File::create_new(temporary).map_err(StoreError::io("creating", temporary))?;
    failpoint::at("commit-before-write");
    file.write_all(bytes).map_err(StoreError::io("writing", temporary))?;
    if durability == Durability::Now {
        failpoint::at("commit-before-sync");
        file.sync_all().map_err(StoreError::io("syncing", temporary))?;
    }
    failpoint::at("commit-before-rename");
    std::fs::rename(temporary, path).map_err(StoreError::io("renaming to", path))?;
    match (durability, path.parent()) {
        (Durability::Now, Some(directory)) => {
            failpoint::at("commit-before-directory-sync");
            File::open(directory)
                .and_then(|directory| directory.sync_all())
                .map_err(StoreError::io("syncing", directory))
        }
        _ => Ok(()),
    }
}

/// Writes a value as JSON.
pub(crate) fn write_json<T: Serialize>(path: &Path, value: &T, durability: Durability) -> Result<(), StoreError> {
    let bytes =
        serde_json::to_vec_pretty(value).map_err(|error| StoreError::io("encoding", path)(io::Error::other(error)))?;
    write(path, &bytes, durability)
}

/// Reads a JSON file. Absent, torn and unknown are the same: `None`.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, StoreError> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StoreError::io("reading", path)(error)),
    };
    match serde_json::from_slice(&bytes) {
        Ok(value) => Ok(Some(value)),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "ignoring an unreadable record");
            Ok(None)
        }
    }
}

/// Moves a finished directory to its final name. `Ok(false)`: somebody else was first, ours is still where it was.
pub(crate) fn rename_directory(from: &Path, to: &Path) -> Result<bool, StoreError> {
    failpoint::at("commit-before-directory-rename");
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::EXIST | rustix::io::Errno::NOTEMPTY) => Ok(false),
        Err(errno) => Err(StoreError::io("renaming to", to)(errno)),
    }
}

/// The files of a directory without temporaries; none if there is no directory.
pub(crate) fn entries(directory: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let listing = match std::fs::read_dir(directory) {
        Ok(listing) => listing,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(StoreError::io("listing", directory)(error)),
    };
    let mut paths = Vec::new();
    for entry in listing {
        let entry = entry.map_err(StoreError::io("listing", directory))?;
        if !entry.file_name().as_encoded_bytes().starts_with(TEMPORARY.as_bytes()) {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_whole_files_and_leaves_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.json");
        for durability in [Durability::Now, Durability::Later] {
            write_json(&path, &vec![1, 2], durability).unwrap();
        }
        assert_eq!(read_json::<Vec<u8>>(&path).unwrap(), Some(vec![1, 2]));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
        assert!(write(&directory.path().join("no/such"), b"", Durability::Later).is_err());
    }

    #[test]
    fn torn_files_are_absent() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.json");
        assert_eq!(read_json::<Vec<u8>>(&path).unwrap(), None);
        std::fs::write(&path, "[1, 2").unwrap();
        assert_eq!(read_json::<Vec<u8>>(&path).unwrap(), None);
    }

    #[test]
    fn the_second_directory_loses() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for name in ["one", "two"] {
            std::fs::create_dir(at(name)).unwrap();
            std::fs::write(at(name).join(name), "").unwrap();
        }
        assert!(rename_directory(&at("one"), &at("final")).unwrap());
        assert!(!rename_directory(&at("two"), &at("final")).unwrap());
        assert!(at("final/one").exists() && at("two").exists());
    }
}
