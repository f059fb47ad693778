//! The lock on the staging directory of a process. The kernel frees it when the process ends.

use std::{
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use host::lock::{Locked, Wait};

use super::layout::{Layout, try_open_directory};
use crate::{error::StoreError, files};

/// Locks a staging directory, unless another process holds it.
pub(super) fn lock(path: &Path) -> Result<Locked<OwnedFd>, StoreError> {
    host::lock::lock(path, Wait::No, false, || try_open_directory(path)).map_err(StoreError::io("locking", path))
}

/// Whether the process of a staging directory has ended. A path that is not a directory belongs to no process.
pub(super) fn is_abandoned(path: &Path) -> Result<bool, StoreError> {
    if !path.symlink_metadata().is_ok_and(|meta| meta.is_dir()) {
        return Ok(false);
    }
    Ok(matches!(lock(path)?, Locked::Held(_)))
}

/// The staging directories of processes that have ended.
pub(super) fn abandoned(layout: &Layout) -> Result<Vec<PathBuf>, StoreError> {
    let mut abandoned = Vec::new();
    for path in files::entries(&layout.directory("staging"))? {
        if is_abandoned(&path)? {
            abandoned.push(path);
        }
    }
    Ok(abandoned)
}
