//! Copies of images, for callers that make no container: they fill volumes.

use std::path::{Path, PathBuf};

use super::{
    copy::{Blocks, copy_layers_until, copy_part, copy_tree},
    layers::Layers,
};
use crate::error::RuntimeError;

/// Copies an image to the empty directory `target`, or the directory `part` of it: what a container of the image sees,
/// with owners, modes, times, extended attributes, hard links and holes. The layers are top-most first. They are
/// directories, or images that are mounted meanwhile without being attached. The copy ends with an error soon after
/// `cancelled` turns true.
pub fn copy_image(
    layers: &[PathBuf],
    part: Option<&Path>,
    target: &Path,
    cancelled: &dyn Fn() -> bool,
) -> Result<(), RuntimeError> {
    let opened = Layers::open(layers, None, None, None)?;
    match part {
        None => copy_layers_until(opened.paths(), target, cancelled),
        Some(part) => copy_part(opened.paths(), part, target, cancelled),
    }
}

/// Copies the content and the attributes of the directory `source` to the empty directory `target`, as `copy_image`
/// copies an image. The result says how the content of files was copied.
pub fn copy_directory(source: &Path, target: &Path, cancelled: &dyn Fn() -> bool) -> Result<Blocks, RuntimeError> {
    copy_tree(source, target, cancelled)
}
