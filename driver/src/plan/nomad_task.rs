//! A task as Nomad describes it to a driver, in the driver's own types.
//!
//! The wire module makes these values from Nomad's messages. Always holds: the id is not empty, the name is safe as a
//! directory name, and the allocation directory is an absolute path without `.` and `..`.

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf};

use runtime::plan::Propagation;

/// A task as Nomad hands it to a driver.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NomadTask {
    /// Unique per start: `<alloc>/<task>/<random>`.
    pub id: String,
    /// The task's name in the job.
    pub name: String,
    /// The task's `config` block, as msgpack.
    pub driver_config: Vec<u8>,
    /// The complete environment.
    pub env: BTreeMap<String, String>,
    /// The part of the environment that device plugins added.
    pub device_env: BTreeMap<String, String>,
    /// Limits and ports.
    pub resources: TaskResources,
    /// The task's `volume_mount` blocks.
    pub mounts: Vec<NomadMount>,
    /// Devices that device plugins assigned to the task.
    pub devices: Vec<NomadDevice>,
    /// `user` of the task. Empty when unset.
    pub user: String,
    /// The allocation directory.
    pub alloc_dir: PathBuf,
    /// The target of stdout: a FIFO or /dev/null.
    pub stdout_path: PathBuf,
    /// The target of stderr.
    pub stderr_path: PathBuf,
    /// The group's name.
    pub task_group_name: String,
    /// The job's name.
    pub job_name: String,
    /// The job's id.
    pub job_id: String,
    /// The allocation's id.
    pub alloc_id: String,
    /// The job's namespace.
    pub namespace: String,
    /// The node's name.
    pub node_name: String,
    /// The node's id.
    pub node_id: String,
    /// Path of the group's network namespace. `None` is the host's network.
    pub network_path: Option<PathBuf>,
    /// Host name and address of the group, if Nomad assigned them.
    pub hosts_entry: Option<HostsEntry>,
    /// The group's `dns` block.
    pub dns: Option<GroupDns>,
}

/// Limits and ports, in Nomad's units.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TaskResources {
    /// CPU weight in MHz, which Nomad uses as cpu.shares.
    pub cpu_shares: i64,
    /// The share of the node's usable compute, 0 to 1.
    pub percent_ticks: f64,
    /// Reserved cores, as in `1,3`.
    pub cpuset_cpus: String,
    /// The cgroup that Nomad made for the task.
    pub cpuset_cgroup: String,
    /// `memory` in MiB.
    pub memory_mb: i64,
    /// `memory_max` in MiB: 0 is unset, -1 unlimited.
    pub memory_max_mb: i64,
    /// The hard limit in bytes that Nomad computed. Used when `memory` and `memory_max` are missing.
    pub memory_limit_bytes: i64,
    /// Ports of the group's network block.
    pub ports: Vec<AllocatedPort>,
    /// Ports of a network block in the task's own `resources`, which is the form of jobs older than group networks.
    pub task_ports: Vec<AllocatedPort>,
}

/// A host port that Nomad allocated to the task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllocatedPort {
    /// The label in the job.
    pub label: String,
    /// The host's address. `None` means every address of the host.
    pub host_ip: Option<IpAddr>,
    /// The port on the host.
    pub host_port: u16,
    /// The port in the container. It equals the host's port when the job sets none.
    pub container_port: u16,
}

/// A volume that Nomad mounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NomadMount {
    /// Path in the container.
    pub task_path: String,
    /// Path on the host.
    pub host_path: PathBuf,
    /// The mount is read-only.
    pub readonly: bool,
    /// Mount propagation.
    pub propagation: Propagation,
    /// SELinux label for the volume's files, `z` or `Z`. Empty for none.
    pub selinux_label: String,
}

/// A device that a device plugin assigned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NomadDevice {
    /// Path in the container.
    pub task_path: String,
    /// Path on the host.
    pub host_path: PathBuf,
    /// Any of `r`, `w`, `m`.
    pub permissions: String,
}

/// The group's line of /etc/hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostsEntry {
    /// The host name.
    pub hostname: String,
    /// The address; empty if Nomad does not name it.
    pub address: String,
}

/// The group's `dns` block. An empty list keeps the host's values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupDns {
    /// Name servers.
    pub servers: Vec<String>,
    /// Search domains.
    pub searches: Vec<String>,
    /// Resolver options.
    pub options: Vec<String>,
}
