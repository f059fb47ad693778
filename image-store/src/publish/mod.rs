//! Images for registries: layouts are converted, downloaded from a registry, and uploaded to one.
//!
//! None of this uses the store of a node. An image keeps all its manifests, each with its digest.

mod convert;
mod fetch;
mod layout_image;
mod parts;
mod push;
mod writer;

pub use convert::{Conversion, NativeForm, NativeManifest, convert_layout};
pub(crate) use fetch::fetch;
pub use layout_image::LayoutImage;
pub(crate) use push::push;
pub use push::{PushRequest, Pushed};
