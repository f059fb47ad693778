//! Protects layers by fs-verity: the kernel verifies each block that it reads from disk.
//!
//! - Only a layer in an EROFS image is protected. The rest of the store can be checked by its digests.
//! - A layer is protected after it is synced, in the background. A kill leaves it as it was, and the next sync or the
//!   next start of a process goes on.
//! - The kernel alone finds a changed block, when a process reads it. It writes the inode to its log.

use std::{
    fs::File,
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
};

use host::verity::{self, Enabled};
use layer::Digest;
use rustix::io::Errno;

use super::{
    layers,
    layout::{LayerFormat, Layout},
};
use crate::error::StoreError;

/// Why the kernel cannot verify the blocks of layers of this format in this directory. `None`: it can. A temporary file
/// is made there.
///
/// # Errors
/// The file system fails.
pub fn fs_verity_problem(directory: &Path, format: LayerFormat) -> Result<Option<&'static str>, StoreError> {
    if format == LayerFormat::Directory {
        return Ok(Some("they are files in directories"));
    }
    let supported = verity::is_supported(directory).map_err(StoreError::io("trying fs-verity in", directory))?;
    Ok(if supported { None } else { Some("the kernel or the file system has no fs-verity") })
}

/// Fails if layers cannot be protected here.
pub(super) fn check(layout: &Layout) -> Result<(), StoreError> {
    // A sweep of another process removes temporary files.
    let _adding = layout.lock_shared()?;
    match fs_verity_problem(layout.root(), layout.format)? {
        Some(problem) => Err(StoreError::Unprotected { path: layout.root().to_owned(), problem }),
        None => Ok(()),
    }
}

/// Protects the layers that are not protected yet. Reads each of them whole. `Ok(false)`: one is still open for
/// writing.
pub(super) fn protect(layout: &Layout) -> Result<bool, StoreError> {
    let mut all = true;
    for (path, _) in layers::all(layout)? {
        let image = path.join(layers::IMAGE);
        let enabled = match verity::is_enabled(&image) {
            Ok(false) => verity::enable(&image),
            Ok(true) => continue,
            Err(error) => Err(error),
        };
        match enabled {
            Ok(Enabled::Yes) => tracing::debug!(path = %image.display(), "a layer is protected by fs-verity"),
            Ok(Enabled::Busy) => all = false,
            // A layer in a directory, or one that was removed.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(StoreError::io("protecting by fs-verity", image)(error)),
        }
    }
    Ok(all)
}

/// The protected layer with this inode, if a read at this offset of its image fails. No other task gets it. `None` also
/// if that is known.
pub(super) fn damaged(layout: &Layout, inode: u64, offset: u64) -> Result<Option<Digest>, StoreError> {
    for (path, meta) in layers::all(layout)? {
        let image = path.join(layers::IMAGE);
        let Some(meta) = meta.filter(|meta| !meta.suspect) else { continue };
        if !image.symlink_metadata().is_ok_and(|found| found.ino() == inode) {
            continue;
        }
        let read = File::open(&image).and_then(|file| file.read_exact_at(&mut [0], offset));
        // The record may be about the file of another file system that has the same number.
        if !read.is_err_and(|error| Errno::from_io_error(&error) == Some(Errno::IO)) {
            continue;
        }
        layers::suspect(layout, &meta.diff_id)?;
        return Ok(Some(meta.diff_id));
    }
    Ok(None)
}
