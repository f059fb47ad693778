//! Copying a stack of layers into one directory, for hosts where overlayfs does not work. Also copying a directory.
//!
//! - `path`: paths below an open directory.
//! - `entry`: copies one file with its attributes.
//! - `merge`: merges the layers as overlayfs does.

mod entry;
mod merge;
mod path;
#[cfg(test)]
mod tests;

pub(super) use merge::{copy_layers, copy_tree};
