//! The images on this machine: layers, records of images, leases.
//!
//! - Several processes use one store at the same time. Everything appears by a rename, and leases are files.
//! - The store lock orders processes that add (shared) and processes that remove (exclusive).
//! - A native layer may be mounted before all of it is here (`partial`).
//! - This module knows no registry, no credentials and no pull. [`LocalStore`] is all that pulls use of it.

mod disk_space;
mod erofs;
mod fsck;
mod gc;
mod image_record;
mod images;
mod implied;
mod layer_lock;
mod layers;
mod layout;
mod lease_record;
mod leasing;
mod local;
mod partial;
mod partials;
mod protection;
mod references;
mod removals;
mod retention;
mod staging;
mod staging_lock;
mod sweep;
mod trash;
mod tree;
mod usage;

pub(crate) use disk_space::DiskUse;
#[cfg(test)]
pub(crate) use disk_space::Use;
#[cfg(feature = "fuzzing")]
pub use erofs::mount as mount_image;
pub use fsck::{Finding, FindingKind, FsckOptions, FsckReport, Outcome, Severity, fsck};
pub use gc::PruneReport;
pub use image_record::{Access, ImageRecord, LayerRecord};
pub(crate) use image_record::{RecordSource, now};
pub use layout::LayerFormat;
pub(crate) use lease_record::Lease;
pub(crate) use leasing::MountSources;
pub(crate) use local::LocalStore;
pub(crate) use partial::{Partial, Partials};
pub use protection::fs_verity_problem;
pub use removals::{RemovalCause, Removals};
pub(crate) use retention::ReclaimTarget;
pub use retention::{Pressure, Removed, Retention, RetentionReport};
pub(crate) use staging::Staged;
pub use sweep::SweepReport;
pub use usage::{DiskSize, ImageUsage, LayerUsage, StoreSize};
