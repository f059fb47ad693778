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

pub(crate) use applier::{Applied, Applier, MAX_NAMES};
pub use attributes::SkippedXattrs;
pub(crate) use attributes::{Attributes, check_xattrs_size, may_be_set, xattrs_size};
pub(crate) use checks::is_symlink_target;
pub(crate) use entry_path::is_whiteout;
#[cfg(test)]
pub(crate) use lookup::Lookup;
pub(crate) use lookup::{MAX_DEPTH, MAX_PATH};
pub(crate) use store::{Existing, LayerStore, LookupError, Place, SpecialFile, Step};
pub(crate) use trial::Trial;
