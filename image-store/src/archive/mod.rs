//! Image archives on disk: `docker save` and OCI layouts, as a tar, a compressed tar, or a directory.
//!
//! The file may change while it is read. Everything that is read from it is verified against a digest afterwards.

mod choose;
mod index;
mod layout;
mod source;

pub(crate) use choose::path_of;
pub use choose::{ArchiveImage, ArchiveLayer, choose};
pub(crate) use layout::{NAME, OciLayout};
pub(crate) use source::CancelOnDrop;
pub use source::{Cancelled, Part, Source};
