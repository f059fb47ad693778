//! Removal of directories in two steps: a rename into the trash under the store lock, then the deletion without the
//! lock.

use std::{fs, io, path::Path};

use super::layout::{Layout, open_directory};
use crate::{error::StoreError, files};

/// Moves a directory to the trash. A missing one is fine.
pub(crate) fn discard(layout: &Layout, path: &Path) -> Result<(), StoreError> {
    failpoint::at("trash-before-rename");
    match fs::rename(path, layout.trash()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(StoreError::io("discarding", path)(error)),
        _ => Ok(()),
    }
}

/// Deletes everything in the trash. Two processes may do so at the same time. An entry that cannot be deleted stays for
/// the next call and does not keep the others.
pub(crate) fn empty(layout: &Layout) -> Result<(), StoreError> {
    let trash = layout.directory("trash");
    // A symbolic link in place of the directory would lead to files outside the store.
    drop(open_directory(&trash)?);
    for path in files::entries(&trash)? {
        failpoint::at("trash-before-deletion");
        let removed = match host::tree::remove(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => fs::remove_file(&path),
            result => result,
        };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path = %path.display(), %error, "not deleted");
            }
            _ => {}
        }
    }
    Ok(())
}
