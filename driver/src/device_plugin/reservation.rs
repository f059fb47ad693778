//! What a task with some devices gets.
//!
//! Any driver understands the variables, nodes and mounts. Nomad's message has no field for hooks, groups, tmpfs mounts
//! and owners of nodes. For this driver a variable names the devices, and it applies their whole specs.

use std::{collections::BTreeMap, path::Path};

use cdi::{ContainerEdits, QualifiedName};
use host::hash::fnv1a;

use super::{facts, groups};
use crate::{config::DevicePluginConfig, error::TaskError, plan};

/// What the task gets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reservation {
    /// Variables.
    pub env: BTreeMap<String, String>,
    /// Binds.
    pub mounts: Vec<ReservedMount>,
    /// Device nodes.
    pub devices: Vec<ReservedDevice>,
}

/// A bind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReservedMount {
    /// The path in the container.
    pub task_path: String,
    /// The path on the node.
    pub host_path: String,
    /// The mount is read-only.
    pub read_only: bool,
}

/// A device node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReservedDevice {
    /// The path in the container.
    pub task_path: String,
    /// The path on the node.
    pub host_path: String,
    /// Any of `r`, `w`, `m`.
    pub permissions: String,
}

/// The reservation of the devices with these ids. Reads the specs. Blocks on the file system.
pub fn reserve(config: &DevicePluginConfig, ids: &[String]) -> Result<Reservation, TaskError> {
    let registry = cdi::load(&config.spec_dirs);
    let refused = |problem: String| {
        let directories: Vec<String> = config.spec_dirs.iter().map(|path| path.display().to_string()).collect();
        TaskError::Invalid(format!("{problem} (specs are searched in {})", directories.join(", ")))
    };
    let names = ids.iter().map(|id| groups::name_of(id).parse::<QualifiedName>());
    let mut names = names.collect::<Result<Vec<_>, _>>().map_err(|error| refused(error.to_string()))?;
    names.sort();
    names.dedup();
    let edits = registry.edits(&names).map_err(|error| refused(error.to_string()))?;
    if let Some(problem) = edits.device_nodes.iter().find_map(facts::problem) {
        return Err(refused(format!("a device node is missing: {problem}")));
    }
    Ok(decide(&names, &edits, |path| Path::new(path).exists()))
}

/// The reservation of these devices with these edits. `exists` tells whether a path of the node exists.
fn decide(names: &[QualifiedName], edits: &ContainerEdits, exists: impl Fn(&str) -> bool) -> Reservation {
    let mut reservation = Reservation::default();
    let pairs = edits.env.iter().filter_map(|entry| entry.split_once('='));
    reservation.env.extend(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let list = names.join(",");
    // A task may have devices of several reservations, and each must keep its variable.
    reservation.env.insert(format!("{}{:016x}", plan::RESERVED_CDI_DEVICES, fnv1a(list.as_bytes())), list);
    // A node that exists only by its number cannot be given by path.
    for node in edits.device_nodes.iter().filter(|node| node.permissions != "none" && exists(node.path_on_node())) {
        reservation.devices.retain(|earlier| earlier.task_path != node.path);
        reservation.devices.push(ReservedDevice {
            task_path: node.path.clone(),
            host_path: node.path_on_node().to_owned(),
            permissions: if node.permissions.is_empty() { "rwm".to_owned() } else { node.permissions.clone() },
        });
    }
    let is_bind = |mount: &&cdi::Mount| {
        let option = |option: &String| ["bind", "rbind"].contains(&option.as_str());
        matches!(mount.mount_type.as_str(), "" | "none" | "bind") || mount.options.iter().any(option)
    };
    for mount in edits.mounts.iter().filter(is_bind) {
        reservation.mounts.retain(|earlier| earlier.task_path != mount.container_path);
        let last = mount.options.iter().rev().find(|option| ["ro", "rro", "rw", "rrw"].contains(&option.as_str()));
        reservation.mounts.push(ReservedMount {
            task_path: mount.container_path.clone(),
            host_path: mount.host_path.clone(),
            read_only: last.is_some_and(|option| option.ends_with("ro")),
        });
    }
    reservation
}

#[cfg(test)]
mod tests {
    use cdi::{DeviceNode, Mount};

    use super::*;

    #[test]
    fn a_reservation_has_what_any_driver_understands_and_the_names() {
        let node = |path: &str, host: &str, permissions: &str| DeviceNode {
            path: path.into(),
            host_path: host.into(),
            permissions: permissions.into(),
            ..DeviceNode::default()
        };
        let mount = |target: &str, kind: &str, options: &[&str]| Mount {
            host_path: "/lib".into(),
            container_path: target.into(),
            options: options.iter().map(|option| (*option).to_owned()).collect(),
            mount_type: kind.into(),
        };
        let edits = ContainerEdits {
            env: vec!["A=1".into(), "B=x=y".into(), "A=2".into()],
            device_nodes: vec![
                node("/dev/a", "/dev/first", "r"),
                node("/dev/a", "/dev/second", ""),
                node("/dev/b", "", "rw"),
                node("/dev/c", "", "none"),
                node("/dev/missing", "", ""),
            ],
            mounts: vec![
                mount("/a", "", &["rw", "rro"]),
                mount("/b", "none", &["bind", "ro", "rw"]),
                mount("/c", "tmpfs", &[]),
                mount("/d", "", &["rprivate"]),
            ],
            ..ContainerEdits::default()
        };
        let names: Vec<QualifiedName> = ["v.com/c=0", "v.com/c=1"].map(|name| name.parse().unwrap()).to_vec();
        let found = decide(&names, &edits, |path| path != "/dev/missing");
        let expected = Reservation {
            env: [("A", "2"), ("B", "x=y"), ("OCI_RS_CDI_DEVICES_839b691f9a01fe34", "v.com/c=0,v.com/c=1")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            mounts: [("/a", true), ("/b", false), ("/d", false)]
                .map(|(path, read_only)| ReservedMount { task_path: path.into(), host_path: "/lib".into(), read_only })
                .to_vec(),
            devices: [("/dev/a", "/dev/second", "rwm"), ("/dev/b", "/dev/b", "rw")]
                .map(|(task_path, host_path, permissions)| ReservedDevice {
                    task_path: task_path.into(),
                    host_path: host_path.into(),
                    permissions: permissions.into(),
                })
                .to_vec(),
        };
        assert_eq!(found, expected);
        let variables = |name: &str| {
            let found = decide(&[name.parse().unwrap()], &ContainerEdits::default(), |_| true);
            found.env.into_keys().collect::<Vec<_>>()
        };
        assert_ne!(variables("v.com/c=0"), variables("v.com/c=1"), "reservations do not hide each other");
    }
}
