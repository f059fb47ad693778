//! The container's root file system: the image's layers with a writable one over them, or a copy of what they show.
//!
//! It is mounted in the creator's mount namespace only, so it never shows on the host and goes with the last process that
//! uses it, whatever happens to us.

mod binds;
mod copy;
mod empty;
mod groups;
mod inside;
mod layers;
mod overlay;
mod probe;
mod propagation;
mod tools;
mod tree;
mod view;
mod volume;
mod writable;

pub(crate) use binds::make_binds;
pub(crate) use empty::EmptyMounts;
pub(crate) use groups::tree_of_groups;
pub(crate) use inside::Root;
pub(crate) use layers::{Layers, MountedImages};
pub(crate) use probe::{image_problem, overlay_problem};
pub(crate) use propagation::HostMounts;
pub(crate) use tools::Tools;
pub(crate) use view::{HeldNetwork, View, hide_from_engine};
pub(crate) use volume::make_volume;
pub(crate) use writable::Writable;
