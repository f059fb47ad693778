//! Nomad's part of a task in our own words. The wire's types go no further than this module.

use std::{collections::BTreeMap, path::PathBuf};

use proto::driver as wire;
use runtime::plan::Propagation;

/// A task as Nomad hands it to a driver.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NomadTask {
    /// Unique per start: `<alloc>/<task>/<random>`.
    pub id: String,
    /// The task's name in the job.
    pub name: String,
    /// The task block, as it came.
    pub driver_config: Vec<u8>,
    /// The complete environment.
    pub env: BTreeMap<String, String>,
    /// The part of it that device plugins added.
    pub device_env: BTreeMap<String, String>,
    /// What the task may use.
    pub resources: TaskResources,
    /// Volumes that Nomad mounts.
    pub mounts: Vec<NomadMount>,
    /// Devices that device plugins gave.
    pub devices: Vec<NomadDevice>,
    /// `user` of the task, empty when unset.
    pub user: String,
    /// The allocation's folder.
    pub alloc_dir: PathBuf,
    /// Where stdout goes: a FIFO or /dev/null.
    pub stdout_path: PathBuf,
    /// Where stderr goes.
    pub stderr_path: PathBuf,
    /// The group's name.
    pub task_group_name: String,
    /// The job's name.
    pub job_name: String,
    /// The job's id.
    pub job_id: String,
    /// The allocation.
    pub alloc_id: String,
    /// The job's namespace.
    pub namespace: String,
    /// The node's name.
    pub node_name: String,
    /// The node's id.
    pub node_id: String,
    /// The group's network namespace, by path; `None` is the host's network.
    pub network_path: Option<PathBuf>,
    /// The group's own name and address, if Nomad decided them.
    pub hosts_entry: Option<HostsEntry>,
    /// The group's `dns` block.
    pub dns: Option<Dns>,
}

/// Limits, in Nomad's units.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TaskResources {
    /// MHz, in the form of cpu.shares.
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
    /// The hard limit in bytes that Nomad worked out; used when the two above are missing.
    pub memory_limit_bytes: i64,
}

/// A volume that Nomad mounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NomadMount {
    /// In the container.
    pub task_path: String,
    /// On the host.
    pub host_path: PathBuf,
    /// Nothing can be written through it.
    pub readonly: bool,
    /// How mounts travel.
    pub propagation: Propagation,
}

/// A device of a device plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NomadDevice {
    /// In the container.
    pub task_path: String,
    /// On the host.
    pub host_path: PathBuf,
    /// Any of `r`, `w`, `m`.
    pub permissions: String,
}

/// The group's line of /etc/hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostsEntry {
    /// Its name.
    pub hostname: String,
    /// Its address.
    pub address: String,
}

/// The group's `dns` block; each empty list leaves the host's value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dns {
    /// Name servers.
    pub servers: Vec<String>,
    /// Search domains.
    pub searches: Vec<String>,
    /// Options.
    pub options: Vec<String>,
}

/// A task that Nomad would never send.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the agent sent a task whose {field} {problem}")]
pub struct InvalidTask {
    /// The field of the message.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: String,
}

fn invalid<T>(field: &'static str, problem: impl Into<String>) -> Result<T, InvalidTask> {
    Err(InvalidTask { field, problem: problem.into() })
}

impl TryFrom<wire::TaskConfig> for NomadTask {
    type Error = InvalidTask;

    fn try_from(task: wire::TaskConfig) -> Result<Self, Self::Error> {
        if task.id.is_empty() {
            return invalid("id", "is empty");
        }
        if !task.alloc_dir.starts_with('/') {
            return invalid("alloc_dir", "is not an absolute path");
        }
        // The name becomes a folder's name below the allocation's.
        if task.name.is_empty() || task.name.contains(['/', '\0']) || task.name == "." || task.name == ".." {
            return invalid("name", format!("{:?} cannot name a folder", task.name));
        }
        let (network_path, hosts_entry) = network(task.network_isolation_spec);
        Ok(Self {
            network_path,
            hosts_entry,
            resources: resources(task.resources.unwrap_or_default()),
            mounts: task.mounts.into_iter().map(mount).collect::<Result<_, _>>()?,
            devices: task.devices.into_iter().map(device).collect(),
            dns: task.dns.map(|dns| Dns { servers: dns.servers, searches: dns.searches, options: dns.options }),
            id: task.id,
            name: task.name,
            driver_config: task.msgpack_driver_config,
            env: task.env.into_iter().collect(),
            device_env: task.device_env.into_iter().collect(),
            user: task.user,
            alloc_dir: super::mounts::clean_host(task.alloc_dir.as_ref()),
            stdout_path: task.stdout_path.into(),
            stderr_path: task.stderr_path.into(),
            task_group_name: task.task_group_name,
            job_name: task.job_name,
            job_id: task.job_id,
            alloc_id: task.alloc_id,
            namespace: task.namespace,
            node_name: task.node_name,
            node_id: task.node_id,
        })
    }
}

fn network(spec: Option<wire::NetworkIsolationSpec>) -> (Option<PathBuf>, Option<HostsEntry>) {
    let Some(spec) = spec else { return (None, None) };
    let path = (!spec.path.is_empty()).then(|| PathBuf::from(spec.path));
    let entry = spec
        .hosts_config
        .filter(|hosts| !hosts.hostname.is_empty())
        .map(|hosts| HostsEntry { hostname: hosts.hostname, address: hosts.address });
    (path, entry)
}

fn resources(resources: wire::Resources) -> TaskResources {
    let allocated = resources.allocated_resources.unwrap_or_default();
    let memory = allocated.memory.unwrap_or_default();
    let linux = resources.linux_resources.unwrap_or_default();
    TaskResources {
        cpu_shares: linux.cpu_shares,
        percent_ticks: linux.percent_ticks,
        cpuset_cpus: linux.cpuset_cpus,
        cpuset_cgroup: linux.cpuset_cgroup,
        memory_mb: memory.memory_mb,
        memory_max_mb: memory.memory_max_mb,
        memory_limit_bytes: linux.memory_limit_bytes,
    }
}

fn mount(mount: wire::Mount) -> Result<NomadMount, InvalidTask> {
    let propagation = match mount.propagation_mode.as_str() {
        "" | "private" => Propagation::Private,
        "host-to-task" => Propagation::HostToContainer,
        "bidirectional" => Propagation::Bidirectional,
        other => return invalid("mounts", format!("have the unknown propagation {other:?}")),
    };
    Ok(NomadMount {
        task_path: mount.task_path,
        host_path: mount.host_path.into(),
        readonly: mount.readonly,
        propagation,
    })
}

fn device(device: wire::Device) -> NomadDevice {
    NomadDevice {
        task_path: if device.task_path.is_empty() { device.host_path.clone() } else { device.task_path },
        host_path: device.host_path.into(),
        permissions: if device.cgroup_permissions.is_empty() { "rwm".to_owned() } else { device.cgroup_permissions },
    }
}
