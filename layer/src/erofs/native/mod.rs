//! Native images: layers that registries hold as EROFS images.
//!
//! A native image has one form for each layer, so that the same layer gives the same bytes, and so that a reader can
//! tell whether this crate could have written an image. The file has four parts, each of whole blocks:
//! 1. the superblock
//! 2. inodes, directories and links, in the order of a walk that visits names in the order of their bytes
//! 3. the data of regular files, without gaps: that of files that are read first, if they are known, then that of the
//!    others in the order of their inodes
//! 4. the hash tree of the first three parts, see the module `verity`
//!
//! The first two parts are the metadata. They say where each file's data is, so the data needs no further rules than
//! its length.

mod check;
mod convert;
mod first_reads;
mod front;
mod image;
mod receive;
mod rules;
#[cfg(test)]
mod tests;
mod verity;

pub use check::{CheckedImage, check_image, check_metadata, check_padding};
pub use convert::{Converted, FirstReads, convert};
pub use first_reads::{FileReads, files_read};
pub use front::check_front;
pub use image::Parts;
pub use receive::receive;
pub use verity::blocks_match;
