//! Unpacks one image layer: a blob's bytes, as they arrive, become files in overlay form.
//!
//! [`unpack`] does all of it. The crate knows no image store, no registry, no Nomad and no containers.

mod apply;
pub mod buffers;
pub mod digest;
mod directory;
mod erofs;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod limits;
pub mod marks;
mod path;
pub mod ranges;
pub mod stream;
mod sys;
mod tar;
mod unpack;

pub use digest::{Digest, InvalidDigest};
pub use erofs::{
    BLOCK, CheckedImage, Converted, FileReads, FirstReads, ImageFile, ImageReader, MemoryCounter, Parts, SampleImage,
    blocks_match, check_front, check_image, check_metadata, check_padding, convert, files_read, is_compressed, receive,
    uuid,
};
pub use error::{Problem, UnpackError};
pub use limits::Limits;
pub use unpack::{Output, Unpacked, unpack};

pub use crate::tar::{EntryKind, TarEntry, TarReader};
