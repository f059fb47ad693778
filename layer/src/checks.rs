//! What every entry must keep, however it is stored.

use crate::{
    directory::tree::LookupError,
    error::UnpackError,
    limits::Limits,
    name::{self, Target},
    tar::{archive::Entry, header::Kind},
};

/// What an entry asks for, which of the layer's root is only that it be a directory.
pub(crate) fn classify(entry: &Entry) -> Result<Target, UnpackError> {
    let refuse = |problem| UnpackError::refused(&entry.name, problem);
    match name::classify(&entry.name).map_err(refuse)? {
        Target::Root if entry.kind != Kind::Dir => Err(refuse("the layer's root must be a directory".to_owned())),
        target => Ok(target),
    }
}

pub(crate) fn check_entries(entries: u64, limits: &Limits) -> Result<(), UnpackError> {
    let limit = limits.entries;
    if entries > limit {
        return Err(UnpackError::refused(b"", format!("the layer has more than {limit} entries")));
    }
    Ok(())
}

/// `bytes` are the sizes of sparse files as they appear.
pub(crate) fn check_apparent(entry: &Entry, bytes: u64, limits: &Limits) -> Result<(), UnpackError> {
    let limit = limits.layer_bytes;
    if bytes > limit {
        return Err(UnpackError::refused(&entry.name, format!("sparse files of more than {limit} bytes")));
    }
    Ok(())
}

/// A symbolic link's target is one that the kernel takes.
pub(crate) fn check_target(entry: &Entry) -> Result<(), UnpackError> {
    if entry.link.is_empty() || entry.link.contains(&0) || entry.link.len() > 4095 {
        return Err(UnpackError::refused(&entry.name, "a symbolic link with an impossible target"));
    }
    Ok(())
}

/// A device's numbers, as far as Linux has them.
pub(crate) fn device(entry: &Entry) -> Result<(u32, u32), UnpackError> {
    match (u32::try_from(entry.device.0), u32::try_from(entry.device.1)) {
        (Ok(major @ ..=0xfff), Ok(minor @ ..=0xf_ffff)) => Ok((major, minor)),
        _ => Err(UnpackError::refused(&entry.name, "a device number out of range")),
    }
}

/// Why an entry has no directory to stand in.
pub(crate) fn no_parent(entry: &[u8], error: LookupError) -> UnpackError {
    match error {
        LookupError::Missing | LookupError::NotADir => {
            UnpackError::refused(entry, "its parent is no directory of this layer")
        }
        LookupError::TooDeep => UnpackError::refused(entry, "it lies too deep, or behind too many links"),
        LookupError::Io(error) => UnpackError::disk(entry, "opening its parent", error),
    }
}
