//! What container a task becomes: task block + image + Nomad's part of the task + node → [`ContainerPlan`].
//!
//! Everything here is a function of values, apart from [`TaskPlan::check_confined`], which looks at paths of the host just
//! before they are used. What cannot be is refused with all reasons at once.

mod confine;
mod identity;
mod mounts;
mod network;
mod nomad_task;
mod path;
mod process;
mod resources;
mod root;
mod security;
#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, fmt, path::PathBuf};

use ::network::Attachment;
use image_store::Image;
use runtime::plan::{Confined, ContainerPlan, RootFs, SeccompProfile};

pub use self::{
    identity::{alloc_prefix, container_id},
    network::OwnNetwork,
    nomad_task::{AllocatedPort, GroupDns, HostsEntry, NomadDevice, NomadMount, NomadTask, TaskResources},
    path::normalize_host_path,
};
use crate::config::{IpcMode, Mistake, Mistakes, Policy, TaskSpec};

/// What the node is like.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeFacts {
    /// The unified cgroup tree is in use.
    pub cgroup_v2: bool,
    /// What the node can compute in all, in MHz; 0 when unknown.
    pub total_mhz: u64,
    /// How many cores it has.
    pub cores: u64,
    /// The capabilities that this process holds, in the kernel's names: a container cannot get more.
    pub held_capabilities: BTreeSet<String>,
    /// Why overlayfs does not work with the directory for images and writable layers, if it does not.
    pub overlay_problem: Option<String>,
    /// The host's resolv.conf, with real name servers in place of a local stub.
    pub host_resolv_conf: String,
    /// The driver's directory for the state of running tasks, in which the networks of their own are.
    pub state_dir: PathBuf,
    /// The host's name.
    pub host_name: String,
    /// The kernel uses AppArmor.
    pub apparmor: bool,
    /// NUMA nodes: number, and cores as the kernel lists them.
    pub numa_nodes: Vec<(u32, String)>,
    /// There is swap, and the kernel does not count it per group.
    pub swap_uncounted: bool,
    /// The kernel uses SELinux.
    pub selinux: bool,
    /// Where named volumes are.
    pub volumes_dir: PathBuf,
}

/// Whether the task's own network is there. Its addresses are known only then, so a plan is made before, for what can be refused,
/// and again after.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum Attached<'a> {
    /// There will be none.
    No,
    /// Not yet, if there is to be one.
    #[default]
    Soon,
    /// It is.
    To(&'a Attachment),
}

/// Everything that decides what container a task becomes.
#[derive(Debug, Clone, Copy)]
pub struct TaskContext<'a> {
    /// The task block.
    pub spec: &'a TaskSpec,
    /// Nomad's part.
    pub task: &'a NomadTask,
    /// The image.
    pub image: &'a Image,
    /// The node.
    pub node: &'a NodeFacts,
    /// What the operator allows.
    pub policy: &'a Policy,
    /// Whether the task's own network is there.
    pub attached: Attached<'a>,
    /// The seccomp profile in the file that the task block names, if it names one.
    pub profile: Option<&'a SeccompProfile>,
}

/// A container, and what must be seen to before and after it runs.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskPlan {
    /// The container.
    pub container: ContainerPlan,
    /// What asks the command to end when the job names no signal.
    pub stop_signal: i32,
    /// Why the start is slow, when it is: the image is copied.
    pub slow: Option<String>,
    /// Why names will not be resolved in the container, if they will not.
    pub no_names: Option<String>,
    /// What the node cannot do for the task although it is asked to.
    pub shortcomings: Vec<String>,
    /// The allocation's directory.
    pub alloc_dir: PathBuf,
    /// Sources of binds that must lie in `alloc_dir` with all links resolved.
    pub confined: Vec<PathBuf>,
    /// Sources of binds that become directories when they are missing.
    pub create: Vec<PathBuf>,
    /// The network that must be there before the container is made.
    pub own_network: Option<OwnNetwork>,
}

/// Why a task cannot become a container; at least one reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct PlanErrors(pub Vec<Mistake>);

impl fmt::Display for PlanErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the task cannot run here: ")?;
        for (index, mistake) in self.0.iter().enumerate() {
            if self.0.len() > 1 {
                write!(f, "{}[{}] ", if index > 0 { " " } else { "" }, index + 1)?;
            }
            write!(f, "{mistake}")?;
        }
        Ok(())
    }
}

/// Decides what container a task becomes.
pub fn container_plan(context: &TaskContext) -> Result<TaskPlan, PlanErrors> {
    let mistakes = Mistakes::default();
    let plan = decide(context, &mistakes);
    let mistakes = mistakes.into_inner();
    if mistakes.is_empty() { Ok(plan) } else { Err(PlanErrors(mistakes)) }
}

fn decide(context: &TaskContext, mistakes: &Mistakes) -> TaskPlan {
    let own_network = network::own(context, mistakes);
    let context = &match own_network {
        Some(_) => *context,
        None => TaskContext { attached: Attached::No, ..*context },
    };
    let TaskContext { spec, task, image, node, .. } = *context;
    let binds = mounts::decide(context, mistakes);
    let network = network::namespace(context, own_network.as_ref());
    let ports = network::port_env(context, own_network.as_ref());
    let hostname = network::hostname(context);
    let (storage, slow) = root::storage(context, mistakes);
    let files = network::files(context, &network, &hostname, &binds.mounts, mistakes);
    let no_names = network::unreachable_servers(context, &network, &files);
    let container = ContainerPlan {
        id: container_id(&task.id),
        args: process::args(spec, &image.config, mistakes),
        env: process::env(spec, &image.config, task, &hostname, &ports, mistakes),
        cwd: process::cwd(spec, &image.config),
        user: if task.user.is_empty() { image.config.user.clone() } else { task.user.clone() },
        groups: spec.group_add.clone(),
        terminal: spec.tty,
        init: spec.init,
        root: RootFs {
            layers: image.layers.clone(),
            storage,
            readonly: spec.readonly_rootfs,
            volumes: mounts::image_volumes(&image.config, &binds.writable, &binds.mounts),
        },
        files,
        devices: mounts::devices(context, mistakes),
        namespaces: security::namespaces(spec, network.clone()),
        security: security::decide(context, mistakes),
        sysctl: network::parameters(security::sysctl(spec, &network, mistakes), own_network.as_ref()),
        rlimits: spec.rlimits.clone(),
        shm_size: if spec.namespaces.ipc == IpcMode::None { 0 } else { spec.shm_size.unwrap_or(DOCKER_SHM_SIZE) },
        oom_score_adj: spec.oom_score_adj,
        resources: resources::limits(context, mistakes),
        cgroup: resources::cgroup(task, node, mistakes),
        output: process::output(spec, task),
        annotations: identity::labels(context),
        owner: Some(task.node_id.clone()).filter(|node| !node.is_empty()),
        confined: Some(Confined { directory: task.alloc_dir.clone(), sources: binds.confined.clone() }),
        mounts: binds.mounts,
        volumes: binds.volumes,
        hostname: (!spec.namespaces.host_uts).then_some(hostname),
    };
    TaskPlan {
        shortcomings: shortcomings(context, &container),
        container,
        slow,
        no_names,
        stop_signal: process::stop_signal(&image.config),
        alloc_dir: task.alloc_dir.clone(),
        confined: binds.confined,
        create: binds.create,
        own_network,
    }
}

/// What is started all the same, as docker would, but not without a word.
fn shortcomings(context: &TaskContext, container: &ContainerPlan) -> Vec<String> {
    let mut texts = Vec::new();
    if context.node.swap_uncounted && container.resources.memory_limit.is_some() {
        texts.push(
            "This node's kernel does not count swap (it needs swapaccount=1): what of the task's memory it swaps out when the node has \
             no other left comes on top of the memory limit"
                .to_owned(),
        );
    }
    let labelled = context.task.mounts.iter().filter(|mount| !mount.selinux_label.is_empty());
    let labelled: Vec<&str> = labelled.map(|mount| mount.task_path.as_str()).collect();
    if context.node.selinux && !labelled.is_empty() {
        texts.push(format!(
            "SELinux labels of volumes are left as they are, because containers have no label of their own: {}",
            labelled.join(", ")
        ));
    }
    texts
}

const DOCKER_SHM_SIZE: u64 = 64 << 20;
