//! What every entry must keep, however it is stored.
//!
//! Pure.

use super::{
    entry_path::{self, EntryPath},
    store::LookupError,
};
use crate::{
    error::UnpackError,
    limits::Limits,
    tar::{EntryKind, TarEntry},
};

/// Tells what an entry's name means. Only a directory may be named like the layer's root.
pub(super) fn classify(entry: &TarEntry) -> Result<EntryPath, UnpackError> {
    let refuse = |problem| UnpackError::refused(&entry.name, problem);
    match entry_path::classify(&entry.name).map_err(refuse)? {
        EntryPath::Root if entry.kind != EntryKind::Dir => {
            Err(refuse("the layer's root must be a directory".to_owned()))
        }
        path => Ok(path),
    }
}

/// The number of entries, implied directories included: they take an inode and memory like any other.
pub(super) fn check_entries(entries: u64, limits: &Limits) -> Result<(), UnpackError> {
    let limit = limits.entries;
    if entries > limit {
        return Err(UnpackError::refused(b"", format!("the layer has more than {limit} entries")));
    }
    Ok(())
}

/// `bytes` is the sum of the apparent sizes of all sparse files so far.
pub(super) fn check_apparent(bytes: u64, limits: &Limits) -> Result<(), UnpackError> {
    let limit = limits.layer_bytes;
    if bytes > limit {
        return Err(UnpackError::refused(b"", format!("sparse files of more than {limit} bytes")));
    }
    Ok(())
}

/// The target of a symbolic link, if the kernel accepts it.
pub(super) fn symlink_target(entry: &TarEntry) -> Result<&[u8], UnpackError> {
    match is_symlink_target(&entry.link) {
        true => Ok(&entry.link),
        false => Err(UnpackError::refused(&entry.name, "a symbolic link with an impossible target")),
    }
}

/// Whether a symbolic link can have this target.
pub(crate) fn is_symlink_target(target: &[u8]) -> bool {
    !target.is_empty() && !target.contains(&0) && target.len() <= 4095
}

/// A device's major and minor number, if Linux has such numbers.
pub(super) fn device(entry: &TarEntry) -> Result<(u32, u32), UnpackError> {
    match (u32::try_from(entry.device.0), u32::try_from(entry.device.1)) {
        (Ok(major @ ..=0xfff), Ok(minor @ ..=0xf_ffff)) => Ok((major, minor)),
        _ => Err(UnpackError::refused(&entry.name, "a device number out of range")),
    }
}

/// Why an entry has no parent directory.
pub(super) fn no_parent(error: LookupError) -> UnpackError {
    match error {
        LookupError::Missing | LookupError::NotADir => {
            UnpackError::refused(b"", "its parent is no directory of this layer")
        }
        LookupError::TooDeep => UnpackError::refused(b"", "it lies too deep, or behind too many links"),
        LookupError::Io(error) => UnpackError::disk("opening its parent", error),
    }
}
