//! The parts of a native image that must be there before it may be mounted: the metadata and the beginning of the hash
//! tree.
//!
//! The kernel reads the metadata without an announcement, so all of it must be in the file. With the upper levels of
//! the hash tree, each block of its lowest level can be verified when it arrives, and with that each block of data. The
//! root covers both, so a wrong byte in them is found here.

use std::os::fd::OwnedFd;

use super::{
    super::format::BLOCK,
    check::{CheckedImage, TREE_REFUSED, check_all, refuse},
    receive::try_attributes,
    verity,
};
use crate::{error::UnpackError, limits::Limits};

/// Checks the metadata and the beginning of the hash tree of an image without its data. The beginning has at least the
/// bytes of [`Parts::front_hashes`](super::Parts::front_hashes). `root` is the root of the hash tree, and `directory`
/// an empty directory on the file system that will hold the image.
///
/// Bytes behind the end of a file, and the digest of the image, can only be checked when the data is here.
///
/// # Errors
/// The image is refused, or the file system fails.
pub fn check_front(
    metadata: &[u8],
    hash_tree: &[u8],
    root: &[u8; 32],
    limits: &Limits,
    directory: &OwnedFd,
) -> Result<CheckedImage, UnpackError> {
    let (image, checked) = check_all(metadata, limits).map_err(refuse)?;
    let parts = checked.parts;
    if !verity::is_beginning(hash_tree, parts.file_system() / BLOCK, image.uuid(), root) {
        return Err(refuse(TREE_REFUSED));
    }
    let (hashes, end) = (parts.hashes_of(0..parts.metadata), parts.file_system());
    let hashes = hash_tree.get((hashes.start - end) as usize..(hashes.end - end) as usize);
    if !hashes.is_some_and(|hashes| verity::blocks_match(hashes, metadata)) {
        return Err(refuse("its metadata is not that of its hash tree"));
    }
    try_attributes(&image, directory)?;
    Ok(checked)
}
