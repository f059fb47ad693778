//! Unpacks one image layer: a blob's bytes, as they arrive, become files in overlay form.
//!
//! [`unpack`] does all of it. Knows no image store, no registry, no Nomad and no containers.

mod attributes;
pub mod buffers;
mod checks;
pub mod digest;
mod directory;
mod erofs;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod limits;
pub mod marks;
mod name;
pub mod stream;
mod sys;
mod tar;
mod unpack;

pub use digest::{Digest, InvalidDigest};
pub use directory::Applied;
pub use erofs::{Memory, SampleImage};
pub use error::UnpackError;
pub use limits::Limits;
pub use unpack::{Output, Unpacked, unpack};

pub use crate::tar::{
    archive::{Archive, Entry},
    header::Kind,
};
