//! The rules of a layer: what each entry of the archive means, and what is refused.
//!
//! [`Applier`] decides; a [`LayerStore`] only stores. Both forms of a layer, the directory and the EROFS image, follow
//! the same rules.

mod applier;
mod attributes;
mod checks;
mod entry_path;
mod finish;
mod lookup;
mod store;
mod trial;

pub(crate) use applier::{Applied, Applier};
pub use attributes::SkippedXattrs;
pub(crate) use attributes::{Attributes, xattrs_size};
#[cfg(test)]
pub(crate) use lookup::Lookup;
pub(crate) use store::{Existing, LayerStore, LookupError, Place, SpecialFile, Step};
pub(crate) use trial::Trial;
