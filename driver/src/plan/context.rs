//! The inputs of a plan.

use std::collections::BTreeMap;

use cdi::ContainerEdits;
use image_store::Image;
use runtime::plan::SeccompProfile;

use super::{node::NodeInfo, nomad_task::NomadTask};
use crate::config::{Policy, TaskSpec};

/// Everything that decides which container a task becomes.
#[derive(Debug, Clone, Copy)]
pub struct TaskContext<'a> {
    /// The task block.
    pub spec: &'a TaskSpec,
    /// Nomad's description of the task.
    pub task: &'a NomadTask,
    /// The image.
    pub image: &'a Image,
    /// The images that the task mounts beside its own, by their names in the job.
    pub mounted_images: &'a BTreeMap<String, Image>,
    /// The node.
    pub node: &'a NodeInfo,
    /// The operator's rules for tasks.
    pub policy: &'a Policy,
    /// The content of the seccomp profile file that the task block names, if it names one.
    pub profile: Option<&'a SeccompProfile>,
    /// What the task's devices of the Container Device Interface change, if it has some.
    pub edits: Option<&'a ContainerEdits>,
}
