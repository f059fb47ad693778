//! From a plan to the OCI runtime spec: pure, once the facts of host and image are known.
//!
//! [`complete_spec`] goes into the bundle, so that any OCI runtime could run it. [`for_engine`] removes from it what
//! our own executor does instead of libcontainer.

mod capability;
mod cgroup_view;
mod complete;
mod destinations;
mod device;
mod engine;
mod error;
mod inputs;
mod mounts;
mod prepared_sources;
mod process;
mod resources;
mod rlimit;
mod seccomp;

pub(crate) use capability::capability_sets;
pub(crate) use cgroup_view::{CGROUP_DIR, CgroupView, cgroup_view};
pub(crate) use complete::{complete_spec, device_nodes};
pub(crate) use destinations::{host_dev_mount, is_on_standard_mount, may_be_covered};
pub(crate) use device::{HostDevice, described_device, host_devices, standard_devices};
#[cfg(feature = "bundle")]
pub(crate) use engine::leave_last_steps;
pub(crate) use engine::{for_engine, leave_nodes_sysfs_and_network};
pub(crate) use error::SpecError;
pub(crate) use inputs::SpecInputs;
pub(crate) use mounts::file_source;
pub(crate) use prepared_sources::{PreparedSource, PreparedSources};
pub(crate) use process::{capabilities, environment};

#[cfg(test)]
mod tests;
