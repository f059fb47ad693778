//! A native image, as it arrives → a file that may be mounted.
//!
//! The bytes are copied and hashed, then the whole image is checked. It is the layer, so its digest is its diff id.
//! Extended attributes that the file system cannot hold are refused, as in archives: a container that changes a file
//! copies it there.

use std::{
    fs::File,
    io::{BufRead, Write},
    os::fd::OwnedFd,
};

use super::{check::check_file, image::NativeImage, rules};
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
    let mut length = 0;
    let failed = |error| UnpackError::disk("writing the native image", error);
    loop {
        let bytes = blob.fill_buf()?;
        let count = bytes.len();
        if count == 0 {
            break;
        }
        length += count as u64;
        if length > limits.layer_bytes {
            return Err(UnpackError::refused(b"", format!("it has more than {} bytes", limits.layer_bytes)));
        }
        file.write_all(bytes).map_err(failed)?;
        blob.consume(count);
    }
    let (digest, blob_bytes) = blob.finish()?;
    let (image, checked) = check_file(&file, metadata, root, limits)?;
    try_attributes(&image, directory)?;
    debug_assert_eq!(checked.parts.total(), blob_bytes, "the length was checked");
    Ok(checked.into_layer(digest))
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
            return Err(UnpackError::refused(b"", problem));
        }
    }
    Ok(())
}
