//! The decision which container a task becomes: task block + image + Nomad's task + node → [`ContainerPlan`].
//!
//! Everything here is a function of values, except [`TaskPlan::check_confined`], which resolves paths of the host just
//! before they are used. A task that cannot run here is refused with all reasons at once.
//!
//! [`ContainerPlan`]: runtime::plan::ContainerPlan

mod cdi;
mod confine;
mod context;
mod delivery;
mod devices;
mod etc_files;
mod hosts;
mod identity;
mod installed_runtime;
mod labels;
mod mounts;
mod network;
mod node;
mod nomad_task;
mod notes;
mod nvidia;
mod path;
mod ports;
mod process;
mod resolv_conf;
mod resources;
mod root;
mod security;
mod selinux;
mod task_plan;
#[cfg(test)]
mod tests;
mod user_namespace;
mod warnings;

pub use self::{
    cdi::{RESERVED as RESERVED_CDI_DEVICES, permitted_names as permitted_cdi_names},
    context::TaskContext,
    identity::{alloc_prefix, container_id},
    mounts::MountedVolume,
    network::{OwnNetwork, uses_host_network},
    node::{Compute, ContainerLabels, NodeInfo},
    nomad_task::{AllocatedPort, GroupDns, HostsEntry, NomadDevice, NomadMount, NomadTask, TaskResources},
    notes::{NotedPort, TaskNotes},
    nvidia::{MAKE_SPEC as MAKE_NVIDIA_SPEC, is_gpu as is_nvidia_gpu},
    path::normalize_host_path,
    task_plan::{PlanErrors, TaskPlan, plan_task},
    user_namespace::REMEDY as USER_NAMESPACE_REMEDY,
};
