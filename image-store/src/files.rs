//! Files of the store: written under a temporary name in the same directory, then renamed.
//!
//! After a kill a file is absent, complete, or a temporary file that the next sweep removes. Records that can be made
//! again are written with [`Durability::Later`]. Their readers treat a torn file as absent, and the background sync of
//! the store makes them durable.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::SystemTime,
};

pub(crate) use host::durable::Durability;
use host::durable::{self, Step};
use rustix::fs::{CWD, RenameFlags};
use serde::{Serialize, de::DeserializeOwned};

use crate::error::StoreError;

/// Begins the names of files that are not committed yet.
const TEMPORARY: &str = ".tmp-";

/// A name that no other process or thread uses.
pub(crate) fn unique() -> String {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    format!("{}-{:x}-{count}", std::process::id(), now.as_nanos())
}

/// A new temporary name in a directory.
pub(crate) fn temporary(directory: &Path) -> PathBuf {
    directory.join(format!("{TEMPORARY}{}", unique()))
}

/// Whether the last component of a path is a temporary name.
pub(crate) fn is_temporary(path: &Path) -> bool {
    path.file_name().unwrap_or_default().as_encoded_bytes().starts_with(TEMPORARY.as_bytes())
}

/// Writes a file whole or not at all, and replaces an older one.
pub(crate) fn write(path: &Path, bytes: &[u8], durability: Durability) -> Result<(), StoreError> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let temporary = temporary(directory);
    let Err(error) = durable::write(path, &temporary, bytes, durability, pass_failpoint) else { return Ok(()) };
    if let Err(error) = fs::remove_file(&temporary) {
        tracing::debug!(path = %temporary.display(), %error, "a temporary file is left for the sweep");
    }
    let at = if error.at_target { path } else { &temporary };
    Err(StoreError::io(error.action, at)(error.source))
}

fn pass_failpoint(step: Step) {
    failpoint::at(match step {
        Step::Write => "commit-before-write",
        Step::Sync => "commit-before-sync",
        Step::Rename => "commit-before-rename",
        Step::SyncDirectory => "commit-before-directory-sync",
    });
}

/// Writes a value as JSON.
pub(crate) fn write_json<T: Serialize>(path: &Path, value: &T, durability: Durability) -> Result<(), StoreError> {
    let bytes =
        serde_json::to_vec_pretty(value).map_err(|error| StoreError::io("encoding", path)(io::Error::other(error)))?;
    write(path, &bytes, durability)
}

/// Reads a JSON file. `None` if it is absent or not readable as `T`: a torn record counts as absent.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, StoreError> {
    let bytes = match fs::read(path) {
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

/// Reads all JSON files of a directory; unreadable ones are left out.
pub(crate) fn read_all<T: DeserializeOwned>(directory: &Path) -> Result<Vec<T>, StoreError> {
    let mut records = Vec::new();
    for path in entries(directory)? {
        records.extend(read_json(&path)?);
    }
    Ok(records)
}

/// Moves a finished directory to its final name. `Ok(false)`: the name is in use, and `from` is unchanged.
pub(crate) fn rename_directory(from: &Path, to: &Path) -> Result<bool, StoreError> {
    failpoint::at("commit-before-directory-rename");
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::EXIST | rustix::io::Errno::NOTEMPTY) => Ok(false),
        Err(errno) => Err(StoreError::io("renaming to", to)(errno)),
    }
}

/// The sorted entries of a directory without temporary ones. Empty if there is no directory.
pub(crate) fn entries(directory: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let listing = match fs::read_dir(directory) {
        Ok(listing) => listing,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(StoreError::io("listing", directory)(error)),
    };
    let mut paths = Vec::new();
    for entry in listing {
        let path = entry.map_err(StoreError::io("listing", directory))?.path();
        if !is_temporary(&path) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// Sets the modification time of a file to now. A missing file is fine.
pub(crate) fn touch(path: &Path) -> Result<(), StoreError> {
    let touched = fs::File::open(path).and_then(|file| file.set_modified(SystemTime::now()));
    match touched {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(StoreError::io("touching", path)(error)),
        _ => Ok(()),
    }
}

/// Removes a file. A missing file is fine.
pub(crate) fn remove_file(path: &Path) -> Result<(), StoreError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(StoreError::io("removing", path)(error)),
        _ => Ok(()),
    }
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
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
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
