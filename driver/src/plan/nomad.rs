//! Nomad's part of a task in our own words. The wire's types go no further than this module.

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf};

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
    /// The allocation's directory.
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
    /// Ports of the group's network block.
    pub ports: Vec<NomadPort>,
    /// Ports of a network block in the task's own `resources`, the form before there were groups' networks.
    pub task_ports: Vec<NomadPort>,
}

/// A port that Nomad allotted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NomadPort {
    /// Its label.
    pub label: String,
    /// The host's address on which it is to be reached; every one without it.
    pub host_ip: Option<IpAddr>,
    /// On the host.
    pub host: u16,
    /// In the task; the host's when the job does not say.
    pub to: u16,
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
    /// SELinux label that its files should get, `z` or `Z`; empty for none.
    pub selinux_label: String,
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
        // The name becomes a directory's name below the allocation's.
        if task.name.is_empty() || task.name.contains(['/', '\0']) || task.name == "." || task.name == ".." {
            return invalid("name", format!("{:?} cannot name a directory", task.name));
        }
        let (network_path, hosts_entry) = network(task.network_isolation_spec);
        Ok(Self {
            network_path,
            hosts_entry,
            resources: resources(task.resources.unwrap_or_default())?,
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

fn resources(resources: wire::Resources) -> Result<TaskResources, InvalidTask> {
    let allocated = resources.allocated_resources.unwrap_or_default();
    let memory = allocated.memory.unwrap_or_default();
    let linux = resources.linux_resources.unwrap_or_default();
    let of_group = |mapping: wire::PortMapping| port(mapping.label, &mapping.host_ip, mapping.value, mapping.to);
    let of_task = |network: &wire::NetworkResource| {
        let ports = network.reserved_ports.iter().chain(&network.dynamic_ports);
        ports.map(|found| port(found.label.clone(), &network.ip, found.value, 0)).collect::<Vec<_>>()
    };
    Ok(TaskResources {
        ports: resources.ports.into_iter().map(of_group).collect::<Result<_, _>>()?,
        task_ports: allocated.networks.first().map(of_task).into_iter().flatten().collect::<Result<_, _>>()?,
        cpu_shares: linux.cpu_shares,
        percent_ticks: linux.percent_ticks,
        cpuset_cpus: linux.cpuset_cpus,
        cpuset_cgroup: linux.cpuset_cgroup,
        memory_mb: memory.memory_mb,
        memory_max_mb: memory.memory_max_mb,
        memory_limit_bytes: linux.memory_limit_bytes,
    })
}

fn port(label: String, host_ip: &str, host: i32, to: i32) -> Result<NomadPort, InvalidTask> {
    let number = |number: i32| u16::try_from(number).ok().filter(|number| *number != 0);
    let Some(host) = number(host) else {
        return invalid("ports", format!("hold {label:?} as {host}, which is no port"));
    };
    let host_ip = match host_ip {
        "" => None,
        text => match text.parse() {
            Ok(address) => Some(address),
            Err(_) => return invalid("ports", format!("hold {label:?} on {text:?}, which is no address")),
        },
    };
    Ok(NomadPort { label, host_ip, host, to: number(to).unwrap_or(host) })
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
        selinux_label: mount.selinux_label,
    })
}

fn device(device: wire::Device) -> NomadDevice {
    NomadDevice {
        task_path: if device.task_path.is_empty() { device.host_path.clone() } else { device.task_path },
        host_path: device.host_path.into(),
        permissions: if device.cgroup_permissions.is_empty() { "rwm".to_owned() } else { device.cgroup_permissions },
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proto::driver as wire;
    use runtime::plan::Propagation;

    use super::{HostsEntry, NomadPort, NomadTask};

    fn wire_task() -> wire::TaskConfig {
        wire::TaskConfig {
            id: "a/web/1".into(),
            name: "web".into(),
            alloc_dir: "/nomad//alloc/./a".into(),
            alloc_id: "a".into(),
            ..wire::TaskConfig::default()
        }
    }

    #[test]
    fn a_task_without_optional_parts_is_a_task() {
        let task = NomadTask::try_from(wire_task()).unwrap();
        assert_eq!(task.alloc_dir, Path::new("/nomad/alloc/a"));
        assert_eq!(task.resources, super::TaskResources::default());
        assert!(task.network_path.is_none() && task.hosts_entry.is_none() && task.dns.is_none());
    }

    #[test]
    fn every_part_arrives() {
        let mut task = wire_task();
        task.msgpack_driver_config = vec![1, 2];
        task.env = [("A".to_owned(), "1".to_owned())].into();
        task.user = "u".into();
        task.resources = Some(wire::Resources {
            allocated_resources: Some(wire::AllocatedTaskResources {
                memory: Some(wire::AllocatedMemoryResources { memory_mb: 256, memory_max_mb: -1 }),
                networks: vec![wire::NetworkResource {
                    ip: "192.0.2.2".into(),
                    dynamic_ports: vec![wire::NetworkPort { label: "old".into(), value: 20002 }],
                    ..Default::default()
                }],
                ..Default::default()
            }),
            linux_resources: Some(wire::LinuxResources {
                cpu_shares: 500,
                percent_ticks: 0.5,
                cpuset_cpus: "1".into(),
                cpuset_cgroup: "/sys/fs/cgroup/x".into(),
                memory_limit_bytes: 9,
                ..Default::default()
            }),
            ports: vec![
                wire::PortMapping { label: "http".into(), value: 20000, to: 80, host_ip: "192.0.2.1".into() },
                wire::PortMapping { label: "same".into(), value: 20001, to: 0, host_ip: String::new() },
            ],
        });
        task.network_isolation_spec = Some(wire::NetworkIsolationSpec {
            path: "/run/netns/a".into(),
            hosts_config: Some(wire::HostsConfig { hostname: "h".into(), address: "10.0.0.1".into() }),
            ..Default::default()
        });
        task.dns = Some(wire::DnsConfig::default());
        task.mounts = [("", "a"), ("private", "b"), ("host-to-task", "c"), ("bidirectional", "d")]
            .map(|(mode, path)| wire::Mount {
                task_path: format!("/{path}"),
                host_path: format!("/host/{path}"),
                propagation_mode: mode.into(),
                ..Default::default()
            })
            .into();
        task.devices = vec![wire::Device { host_path: "/dev/x".into(), ..Default::default() }];

        let task = NomadTask::try_from(task).unwrap();
        assert_eq!((task.driver_config, task.user.as_str(), task.env["A"].as_str()), (vec![1, 2], "u", "1"));
        assert_eq!((task.resources.memory_mb, task.resources.memory_max_mb, task.resources.cpu_shares), (256, -1, 500));
        assert_eq!((task.resources.cpuset_cpus.as_str(), task.resources.percent_ticks), ("1", 0.5));
        assert_eq!((task.resources.cpuset_cgroup.as_str(), task.resources.memory_limit_bytes), ("/sys/fs/cgroup/x", 9));
        let port = |label: &str, host_ip: Option<&str>, host, to| NomadPort {
            label: label.into(),
            host_ip: host_ip.map(|address| address.parse().unwrap()),
            host,
            to,
        };
        assert_eq!(
            task.resources.ports,
            [port("http", Some("192.0.2.1"), 20000, 80), port("same", None, 20001, 20001)]
        );
        assert_eq!(task.resources.task_ports, [port("old", Some("192.0.2.2"), 20002, 20002)]);
        assert_eq!(task.network_path.as_deref(), Some(Path::new("/run/netns/a")));
        assert_eq!(task.hosts_entry, Some(HostsEntry { hostname: "h".into(), address: "10.0.0.1".into() }));
        assert!(task.dns.is_some(), "a dns block with empty lists is not the same as none");
        let propagation: Vec<_> = task.mounts.iter().map(|mount| mount.propagation).collect();
        use Propagation::{Bidirectional, HostToContainer, Private};
        assert_eq!(propagation, [Private, Private, HostToContainer, Bidirectional]);
        assert_eq!((task.devices[0].task_path.as_str(), task.devices[0].permissions.as_str()), ("/dev/x", "rwm"));
    }

    #[test]
    fn what_nomad_never_sends_is_refused_by_field() {
        type Change = fn(&mut wire::TaskConfig);
        let port =
            |value, host_ip: &str| wire::PortMapping { label: "p".into(), value, to: 0, host_ip: host_ip.into() };
        assert!(super::port("p".into(), "", 65536, 0).is_err() && super::port("p".into(), "", 1, 65536).is_ok());
        let mut task = wire_task();
        task.resources = Some(wire::Resources { ports: vec![port(80, "home")], ..Default::default() });
        let error = NomadTask::try_from(task).unwrap_err().to_string();
        assert!(error.ends_with("ports hold \"p\" on \"home\", which is no address"), "{error}");
        let changes: [(Change, &str); 6] = [
            (|task| task.id.clear(), "id is empty"),
            (|task| task.name.clear(), "name \"\" cannot name a directory"),
            (|task| task.name = "../x".into(), "name \"../x\" cannot name a directory"),
            (|task| task.name = "..".into(), "name \"..\" cannot name a directory"),
            (|task| task.alloc_dir = "x".into(), "alloc_dir is not an absolute path"),
            (
                |task| task.mounts.push(wire::Mount { propagation_mode: "up".into(), ..Default::default() }),
                "mounts have the unknown propagation \"up\"",
            ),
        ];
        for (change, expected) in changes {
            let mut task = wire_task();
            change(&mut task);
            let error = NomadTask::try_from(task).unwrap_err().to_string();
            assert!(error.ends_with(expected), "{error}");
        }
    }
}
