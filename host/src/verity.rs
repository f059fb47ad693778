//! fs-verity: the kernel keeps a hash tree of a file and verifies each block that it reads from disk
//! (Documentation/filesystems/fsverity.rst of Linux).
//!
//! A read of a block that changed on disk fails with `EIO`, and the kernel's log says so. The file cannot be written
//! any more; it can be renamed, linked and removed.

use std::{
    fs::{self, File},
    io,
    path::Path,
};

use rustix::{
    fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx},
    io::Errno,
};

use crate::sys::enable_verity;

/// Whether the kernel verifies the blocks of a file.
///
/// # Errors
/// The file cannot be examined.
pub fn is_enabled(path: &Path) -> io::Result<bool> {
    let found = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::empty())?;
    Ok(found.stx_attributes.contains(StatxAttributes::VERITY))
}

/// What became of an attempt to protect a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enabled {
    /// The kernel verifies its blocks from now on, or did so before.
    Yes,
    /// A process has the file open for writing, or another one is protecting it now.
    Busy,
}

/// Has the kernel verify the blocks of a file from now on. Reads the whole file. A kill leaves it as it was.
///
/// # Errors
/// The file system has no fs-verity, is full, or fails.
pub fn enable(path: &Path) -> io::Result<Enabled> {
    match enable_verity(File::open(path)?) {
        Ok(()) => Ok(Enabled::Yes),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::EXIST) => Ok(Enabled::Yes),
            Some(Errno::TXTBSY | Errno::BUSY) => Ok(Enabled::Busy),
            _ => Err(error),
        },
    }
}

/// Whether the files of a directory can be protected: the kernel has fs-verity, and so has the file system. Tries it
/// with a new file, which is removed. After a kill it is left, with the name of a temporary file (`.tmp-…`).
///
/// # Errors
/// The directory cannot be written, or its file system fails.
pub fn is_supported(directory: &Path) -> io::Result<bool> {
    let path = directory.join(format!(".tmp-fs-verity-{}", std::process::id()));
    let enabled = fs::write(&path, [0]).and_then(|()| enable(&path));
    let removed = fs::remove_file(&path);
    let supported = match enabled {
        Ok(_) => true,
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::NOTTY | Errno::OPNOTSUPP) => false,
            _ => return Err(error),
        },
    };
    removed?;
    Ok(supported)
}

#[cfg(test)]
mod tests {
    use super::*;

    // tests/tests/wire/fs_verity.rs has a file system with fs-verity.
    #[test]
    fn a_file_system_without_it_is_left_as_it_was() {
        let memory = tempfile::tempdir_in("/dev/shm").unwrap();
        assert!(!is_supported(memory.path()).unwrap());
        assert_eq!(memory.path().read_dir().unwrap().count(), 0);
        let file = memory.path().join("file");
        fs::write(&file, "content").unwrap();
        assert!(!is_enabled(&file).unwrap());
        assert_eq!(enable(&file).unwrap_err().raw_os_error(), Some(libc::ENOTTY));
        assert_eq!(fs::read(&file).unwrap(), b"content");
        assert!(is_supported(&memory.path().join("missing")).is_err());
    }
}
