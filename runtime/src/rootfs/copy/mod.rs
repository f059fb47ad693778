//! Copying a stack of layers into one directory, for hosts where overlayfs does not work, and to fill volumes. Also
//! copying a directory.
//!
//! - `path`: paths below an open directory.
//! - `entry`: copies one file with its attributes.
//! - `merge`: merges the layers as overlayfs does.
//! - `part`: copies a directory of the merged layers.

mod entry;
mod merge;
mod part;
mod path;
#[cfg(test)]
mod tests;

pub use entry::Blocks;
pub(super) use merge::{copy_layers, copy_layers_until, copy_tree};
pub(super) use part::copy_part;
