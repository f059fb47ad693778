//! Nomad's TaskConfig message as a [`NomadTask`].
//!
//! Nomad's client checks a job before it calls a driver. A message that breaks these rules is therefore an error of
//! the agent, not of the job's author.

use std::path::{Path, PathBuf};

use proto::driver as wire;
use runtime::plan::Propagation;

use crate::{
    groups,
    plan::{
        AllocatedPort, GroupDns, HostsEntry, NomadDevice, NomadMount, NomadTask, TaskResources, normalize_host_path,
    },
};

/// A task message that breaks a rule of Nomad's protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the agent sent a task whose {field} {problem}")]
pub struct InvalidTask {
    /// The field of the message.
    pub field: &'static str,
    /// The problem, as the rest of a sentence.
    pub problem: String,
}

fn invalid<T>(field: &'static str, problem: impl Into<String>) -> Result<T, InvalidTask> {
    Err(InvalidTask { field, problem: problem.into() })
}

/// Converts the message of StartTask or RecoverTask.
pub fn nomad_task(config: wire::TaskConfig) -> Result<NomadTask, InvalidTask> {
    check(&config)?;
    let (network_path, hosts_entry) = network(config.network_isolation_spec);
    Ok(NomadTask {
        network_path,
        hosts_entry,
        resources: resources(config.resources.unwrap_or_default())?,
        mounts: config.mounts.into_iter().map(mount).collect::<Result<_, _>>()?,
        devices: config.devices.into_iter().map(device).collect(),
        dns: config.dns.map(|dns| GroupDns { servers: dns.servers, searches: dns.searches, options: dns.options }),
        id: config.id,
        name: config.name,
        driver_config: config.msgpack_driver_config,
        env: config.env.into_iter().collect(),
        device_env: config.device_env.into_iter().collect(),
        user: config.user,
        alloc_dir: normalize_host_path(Path::new(&config.alloc_dir)),
        stdout_path: config.stdout_path.into(),
        stderr_path: config.stderr_path.into(),
        task_group_name: config.task_group_name,
        job_name: config.job_name,
        job_id: config.job_id,
        alloc_id: config.alloc_id,
        namespace: config.namespace,
        node_name: config.node_name,
        node_id: config.node_id,
    })
}

fn check(config: &wire::TaskConfig) -> Result<(), InvalidTask> {
    if config.id.is_empty() {
        return invalid("id", "is empty");
    }
    if !config.alloc_dir.starts_with('/') {
        return invalid("alloc_dir", "is not an absolute path");
    }
    // The task directory below the allocation directory has this name.
    let name = config.name.as_str();
    if name.is_empty() || name.contains(['/', '\0']) || name == "." || name == ".." {
        return invalid("name", format!("{name:?} cannot name a directory"));
    }
    Ok(())
}

fn network(spec: Option<wire::NetworkIsolationSpec>) -> (Option<PathBuf>, Option<HostsEntry>) {
    let Some(spec) = spec else { return (None, None) };
    let path = (!spec.path.is_empty()).then(|| PathBuf::from(spec.path));
    let named = spec.hosts_config.filter(|hosts| !hosts.hostname.is_empty());
    let entry = named.map(|hosts| HostsEntry { hostname: hosts.hostname, address: hosts.address });
    // After a restart of the agent, Nomad up to 1.10 makes no line for a network that existed. The labels remain.
    let hostname = || groups::hostname(|label| spec.labels.get(label).map(String::as_str)).map(str::to_owned);
    let labelled = || Some(HostsEntry { hostname: hostname()?, address: String::new() });
    (path, entry.or_else(labelled))
}

fn resources(resources: wire::Resources) -> Result<TaskResources, InvalidTask> {
    let allocated = resources.allocated_resources.unwrap_or_default();
    let memory = allocated.memory.unwrap_or_default();
    let linux = resources.linux_resources.unwrap_or_default();
    let group_port = |mapping: wire::PortMapping| port(mapping.label, &mapping.host_ip, mapping.value, mapping.to);
    let task_ports = |network: &wire::NetworkResource| {
        let ports = network.reserved_ports.iter().chain(&network.dynamic_ports);
        ports.map(|wire_port| port(wire_port.label.clone(), &network.ip, wire_port.value, 0)).collect::<Vec<_>>()
    };
    Ok(TaskResources {
        ports: resources.ports.into_iter().map(group_port).collect::<Result<_, _>>()?,
        task_ports: allocated.networks.first().map(task_ports).into_iter().flatten().collect::<Result<_, _>>()?,
        cpu_shares: linux.cpu_shares,
        percent_ticks: linux.percent_ticks,
        cpuset_cpus: linux.cpuset_cpus,
        cpuset_cgroup: linux.cpuset_cgroup,
        memory_mb: memory.memory_mb,
        memory_max_mb: memory.memory_max_mb,
        memory_limit_bytes: linux.memory_limit_bytes,
    })
}

/// A port. A container port of 0 means that the job sets none.
fn port(label: String, host_ip: &str, host_port: i32, container_port: i32) -> Result<AllocatedPort, InvalidTask> {
    let number = |number: i32| u16::try_from(number).ok().filter(|number| *number != 0);
    let Some(host_port) = number(host_port) else {
        return invalid("ports", format!("hold {label:?} as {host_port}, which is no port"));
    };
    let host_ip = match host_ip {
        "" => None,
        text => match text.parse() {
            Ok(address) => Some(address),
            Err(_) => return invalid("ports", format!("hold {label:?} on {text:?}, which is no address")),
        },
    };
    let container_port = number(container_port).unwrap_or(host_port);
    Ok(AllocatedPort { label, host_ip, host_port, container_port })
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

    use super::{AllocatedPort, HostsEntry, TaskResources, nomad_task};

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
    fn a_network_without_a_line_has_the_host_name_of_its_labels() {
        let labels = [("docker_sandbox_container_id".to_owned(), "9f7b0c1e111122223333".to_owned())].into();
        let mut spec = wire::NetworkIsolationSpec { labels, ..Default::default() };
        let expected = HostsEntry { hostname: "9f7b0c1e1111".into(), address: String::new() };
        assert_eq!(super::network(Some(spec.clone())), (None, Some(expected)));
        spec.labels.clear();
        assert_eq!(super::network(Some(spec)), (None, None));
    }

    #[test]
    fn a_message_without_optional_parts_is_converted() {
        let task = nomad_task(wire_task()).unwrap();
        assert_eq!(task.alloc_dir, Path::new("/nomad/alloc/a"));
        assert_eq!(task.resources, TaskResources::default());
        assert!(task.network_path.is_none() && task.hosts_entry.is_none() && task.dns.is_none());
    }

    #[test]
    fn every_field_is_converted() {
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

        let task = nomad_task(task).unwrap();
        assert_eq!((task.driver_config, task.user.as_str(), task.env["A"].as_str()), (vec![1, 2], "u", "1"));
        assert_eq!((task.resources.memory_mb, task.resources.memory_max_mb, task.resources.cpu_shares), (256, -1, 500));
        assert_eq!((task.resources.cpuset_cpus.as_str(), task.resources.percent_ticks), ("1", 0.5));
        assert_eq!((task.resources.cpuset_cgroup.as_str(), task.resources.memory_limit_bytes), ("/sys/fs/cgroup/x", 9));
        let port = |label: &str, host_ip: Option<&str>, host_port, container_port| AllocatedPort {
            label: label.into(),
            host_ip: host_ip.map(|address| address.parse().unwrap()),
            host_port,
            container_port,
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

    /// The bytes are written by hand after Nomad's driver.proto. Bytes from our own file would share its errors.
    #[test]
    fn memory_has_the_field_numbers_of_nomads_file() {
        use prost::Message;
        // memory_mb = 2 is 64. memory_max_mb = 3 is 256, or -1 for no limit.
        let no_limit = [0x10, 64, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        for (bytes, expected) in
            [(&[0x10, 64][..], (64, 0)), (&[0x10, 64, 0x18, 0x80, 0x02], (64, 256)), (&no_limit, (64, -1))]
        {
            let mut task = wire_task();
            let allocated = wire::AllocatedTaskResources {
                memory: Some(wire::AllocatedMemoryResources::decode(bytes).unwrap()),
                ..Default::default()
            };
            task.resources = Some(wire::Resources { allocated_resources: Some(allocated), ..Default::default() });
            let resources = nomad_task(task).unwrap().resources;
            assert_eq!((resources.memory_mb, resources.memory_max_mb), expected, "{bytes:?}");
        }
    }

    #[test]
    fn an_invalid_message_is_refused_with_the_fields_name() {
        type Change = fn(&mut wire::TaskConfig);
        let port =
            |value, host_ip: &str| wire::PortMapping { label: "p".into(), value, to: 0, host_ip: host_ip.into() };
        assert!(super::port("p".into(), "", 65536, 0).is_err() && super::port("p".into(), "", 1, 65536).is_ok());
        let mut task = wire_task();
        task.resources = Some(wire::Resources { ports: vec![port(80, "home")], ..Default::default() });
        let error = nomad_task(task).unwrap_err().to_string();
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
            let error = nomad_task(task).unwrap_err().to_string();
            assert!(error.ends_with(expected), "{error}");
        }
    }
}
