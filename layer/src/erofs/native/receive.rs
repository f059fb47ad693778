//! A native image, as it arrives → a file that may be mounted.
//!
//! The bytes are copied and hashed. The metadata comes first and is checked at once: a refused image costs no download.
//! The hash tree is checked as it arrives, so little is left to do when the last byte is here. The image is the layer,
//! so its digest is its diff id. Extended attributes that the file system cannot hold are refused, as in archives: a
//! container that changes a file copies it there.

use std::{
    fs::File,
    io::{BufRead, Write},
    os::fd::OwnedFd,
};

use super::{
    super::format::BLOCK,
    check::{CheckedImage, PaddingCheck, TREE_REFUSED, check_all, check_length, refuse},
    image::{MAX_METADATA, NativeImage},
    rules,
    verity::TreeCheck,
};
use crate::{
    apply::Trial,
    error::{UnpackError, show},
    limits::Limits,
    stream::BlobReader,
    unpack::Unpacked,
};

/// Copies a native image into an empty file and checks it. `directory` is an empty directory on the same file system,
/// `metadata` the number of bytes of the image's metadata, and `root` the root of its hash tree. Blocks.
///
/// # Errors
/// The image is refused, the file system fails, or the blob ends before its end.
pub fn receive(
    mut blob: BlobReader,
    (mut file, directory): (File, &OwnedFd),
    (metadata, root): (u64, &[u8; 32]),
    limits: &Limits,
) -> Result<Unpacked, UnpackError> {
    let failed = |error| UnpackError::disk("writing the native image", error);
    let (mut length, mut arrived) = (0, Arrived::new(metadata));
    loop {
        let bytes = blob.fill_buf()?;
        let count = bytes.len();
        if count == 0 {
            break;
        }
        if length + count as u64 > limits.layer_bytes {
            return Err(refuse(format!("it has more than {} bytes", limits.layer_bytes)));
        }
        file.write_all(bytes).map_err(failed)?;
        arrived.update(length, bytes, root, |image| try_attributes(image, directory), limits)?;
        length += count as u64;
        blob.consume(count);
    }
    let (digest, blob_bytes) = blob.finish()?;
    let Arrived::Front { checked, tree, .. } = arrived else {
        return Err(refuse("its metadata is too large"));
    };
    check_length(&checked.parts, blob_bytes)?;
    debug_assert!(tree.is_complete(), "all of its bytes were accepted");
    Ok(checked.into_layer(digest))
}

/// What arrived of an image.
enum Arrived {
    /// The metadata is not complete.
    Part { metadata: Vec<u8>, length: u64 },
    /// The metadata was accepted.
    Front { checked: CheckedImage, padding: PaddingCheck, tree: TreeCheck },
}

impl Arrived {
    /// Of an image with so many bytes of metadata.
    fn new(length: u64) -> Self {
        Self::Part { metadata: Vec::new(), length }
    }

    /// Takes the next bytes. `try_image` is called once, with the image without its data.
    fn update(
        &mut self,
        offset: u64,
        bytes: &[u8],
        root: &[u8; 32],
        try_image: impl FnOnce(&NativeImage) -> Result<(), UnpackError>,
        limits: &Limits,
    ) -> Result<(), UnpackError> {
        if let Self::Part { metadata, length } = self {
            let missing = length.saturating_sub(metadata.len() as u64).min(bytes.len() as u64);
            metadata.extend_from_slice(&bytes[..missing as usize]);
            if metadata.len() as u64 > MAX_METADATA {
                return Err(refuse("its metadata is too large"));
            }
            if (metadata.len() as u64) < *length {
                return Ok(());
            }
            let (image, mut checked) = check_all(metadata, limits).map_err(refuse)?;
            try_image(&image)?;
            let padding = PaddingCheck::new(std::mem::take(&mut checked.padding));
            let tree = TreeCheck::new(checked.parts.file_system() / BLOCK, image.uuid(), root);
            *self = Self::Front { checked, padding, tree };
        }
        let Self::Front { checked, padding, tree } = self else { return Ok(()) };
        padding.update(offset, bytes)?;
        let data = checked.parts.file_system().saturating_sub(offset);
        let behind = usize::try_from(data).ok().and_then(|data| bytes.get(data..)).unwrap_or_default();
        if offset + bytes.len() as u64 > checked.parts.total() {
            return check_length(&checked.parts, offset + bytes.len() as u64);
        }
        if tree.update(behind) { Ok(()) } else { Err(refuse(TREE_REFUSED)) }
    }
}

/// Sets the extended attributes of each file on a file that no layer contains.
pub(super) fn try_attributes(image: &NativeImage, directory: &OwnedFd) -> Result<(), UnpackError> {
    const ACTION: &str = "trying its extended attributes";
    let mut trial = Trial::on(directory).map_err(|error| UnpackError::disk(ACTION, error))?;
    for node in image.nodes() {
        let mut xattrs = node.xattrs.clone();
        xattrs.retain(|(key, _)| !rules::is_mark(key));
        if let Some(key) = trial.filter(node.is_dir(), &mut xattrs)?.first() {
            let problem = format!("the file system of data_dir has no extended attribute \"{}\"", show(key));
            return Err(refuse(problem));
        }
    }
    Ok(())
}
