//! The properties of the node that plans depend on.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use runtime::VolumeOptions;

use runtime::plan::IdPool;

use crate::name::DriverName;

/// The node's CPU capacity, as the agent reports it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Compute {
    /// MHz of all cores together; 0 when unknown.
    pub total_mhz: u64,
    /// Number of cores.
    pub cores: u64,
}

/// The labels that the node's policy has for containers: `user:role:type`, or `user:role:type:level`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerLabels {
    /// The label of processes.
    pub process: String,
    /// The label of files.
    pub file: String,
    /// The policy has categories, and the labels have none yet.
    pub categories: bool,
}

/// The properties of the node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeInfo {
    /// The driver's name.
    pub driver: DriverName,
    /// The node uses cgroup v2.
    pub cgroup_v2: bool,
    /// CPU capacity.
    pub compute: Compute,
    /// The capabilities that this process holds, by their kernel names. A container cannot get more.
    pub held_capabilities: BTreeSet<String>,
    /// Why overlayfs does not work with `data_dir`, if it does not.
    pub overlay_problem: Option<String>,
    /// The host's resolv.conf, with the upstream name servers if the host uses a local stub resolver.
    pub host_resolv_conf: String,
    /// The driver's `state_dir`. The namespaces of tasks' own networks are below it.
    pub state_dir: PathBuf,
    /// The host name.
    pub host_name: String,
    /// The host's /etc/hosts. Empty unless the task uses the host's network.
    pub hosts: String,
    /// The kernel uses AppArmor.
    pub apparmor: bool,
    /// The AppArmor profile of tasks that name none, if the node has one.
    pub default_apparmor: Option<String>,
    /// NUMA nodes: number, and cores in the kernel's list format.
    pub numa_nodes: Vec<(u32, String)>,
    /// The node has swap, and the kernel does not count it per cgroup.
    pub swap_uncounted: bool,
    /// The kernel can limit the number of processes.
    pub limits_pids: bool,
    /// The kernel uses SELinux.
    pub selinux: bool,
    /// The SELinux labels of containers, if they get some.
    pub container_labels: Option<ContainerLabels>,
    /// The executable of the OCI runtime that the task names, if it is installed.
    pub runtime: Option<PathBuf>,
    /// The ids for tasks' own user namespaces, if the node has some.
    pub id_pool: Option<IdPool>,
    /// The first port of the node's network on which a process may listen without a right on the node.
    pub first_unprivileged_port: u16,
    /// Why no task of the node can have a user namespace of its own, if the operator wants them and none can.
    pub userns_problem: Option<String>,
    /// Directory of the named volumes.
    pub volumes_dir: PathBuf,
    /// The file systems of those named volumes of the task that have options, also if this task says none.
    pub volume_options: BTreeMap<String, VolumeOptions>,
}
