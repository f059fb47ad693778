//! Paths below an open directory.

use std::{ffi::CStr, os::fd::OwnedFd};

use host::resolve::open_below;
use rustix::{
    fs::{OFlags, ResolveFlags},
    io::Errno,
};

/// Opens a directory below `root`. The path must not leave `root` and must not contain a symbolic link.
pub(super) fn open_directory(root: &OwnedFd, path: &[u8]) -> Result<OwnedFd, Errno> {
    let path = if path.is_empty() { b"." } else { path };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    open_below(root, path, OFlags::RDONLY | OFlags::DIRECTORY, resolve)
}

/// The path of a name in the directory `path`.
pub(super) fn join(path: &[u8], name: &CStr) -> Vec<u8> {
    let mut joined = path.to_vec();
    if !joined.is_empty() {
        joined.push(b'/');
    }
    joined.extend_from_slice(name.to_bytes());
    joined
}
