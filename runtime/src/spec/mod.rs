//! From a plan to the OCI runtime spec: pure, once the facts of host and image are known.
//!
//! [`complete_spec`] goes into the bundle, so that any OCI runtime could run it. [`for_engine`] removes from it what our own
//! executor does instead of libcontainer.

mod capability;
mod complete;
mod device;
mod engine;
mod error;
mod inputs;
mod mounts;
mod process;
mod resources;
mod rlimit;
mod seccomp;

pub(crate) use complete::complete_spec;
pub(crate) use device::{HostDevice, host_devices};
pub(crate) use engine::for_engine;
pub(crate) use error::SpecError;
pub(crate) use inputs::SpecInputs;
pub(crate) use mounts::{
    GROUPS, GroupsView, Source, Sources, below_virtual, file_source, groups_view, host_dev, may_be_covered,
};
pub(crate) use process::{capabilities, environment};

/// The types of the OCI runtime spec.
pub(crate) mod libcontainer_spec {
    pub use oci_spec::runtime::*;
}

#[cfg(test)]
mod tests;
