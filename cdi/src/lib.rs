//! The Container Device Interface, version 1.1: documents of vendors (specs) that say which devices a node has, and
//! which edits of a container give it one of them.
//!
//! * [`Spec`]: one document. [`Spec::parse`] reads and checks it.
//! * [`Kind`], [`QualifiedName`]: names, as in `vendor.com/class=name`.
//! * [`Registry`]: the devices of all documents. It decides between documents that name the same device, and merges the
//!   edits of several devices.
//! * [`load`] reads the documents of directories. Everything else are functions of values.
//!
//! What an edit means for a container is decided by the caller. This crate knows no container.

mod check;
mod directory;
mod document;
mod name;
mod parse;
mod registry;
mod version;

pub use directory::{DEFAULT_DIRECTORIES, load};
pub use document::{
    ContainerEdits, Device, DeviceNode, Hook, HookStage, IntelRdt, Mount, NetDevice, NodeType, Spec, SpecError,
};
pub use name::{Kind, NameError, QualifiedName};
pub use parse::Format;
pub use registry::{Entry, Registry, ResolveError, Source};
