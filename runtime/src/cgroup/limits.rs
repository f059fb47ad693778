//! Resetting the limits that an earlier container left in a cgroup.

use std::{fs, io};

use super::{container::Cgroups, version::Version};
use crate::error::{Context, RuntimeError};

/// Controller, file and value of a new cgroup v1, in an order in which each value can be written: the limit of memory
/// and swap may never be below that of memory.
const V1_DEFAULTS: [(&str, &str, &str); 8] = [
    ("memory", "memory.memsw.limit_in_bytes", "-1"),
    ("memory", "memory.limit_in_bytes", "-1"),
    ("memory", "memory.soft_limit_in_bytes", "-1"),
    ("cpu", "cpu.cfs_quota_us", "-1"),
    ("cpu", "cpu.cfs_period_us", "100000"),
    ("cpu", "cpu.shares", "1024"),
    ("pids", "pids.max", "max"),
    ("devices", "devices.allow", "a"),
];

/// Controller, file and value of a new cgroup v2.
const V2_DEFAULTS: [(&str, &str, &str); 8] = [
    ("memory", "memory.max", "max"),
    ("memory", "memory.low", "0"),
    ("memory", "memory.swap.max", "max"),
    ("cpu", "cpu.max", "max 100000"),
    ("cpu", "cpu.weight", "100"),
    ("cpuset", "cpuset.cpus", "\n"),
    ("cpuset", "cpuset.mems", "\n"),
    ("pids", "pids.max", "max"),
];

/// Removes all limits from the cgroups that existed before the container. A restarted task must not inherit a limit
/// that its new plan does not have. A missing file is skipped, because it limits nothing.
pub(crate) fn reset_limits(cgroups: &Cgroups) -> Result<(), RuntimeError> {
    let defaults: &[_] = match cgroups.version {
        Version::V1 => &V1_DEFAULTS,
        Version::V2 => &V2_DEFAULTS,
    };
    for (controller, file, value) in defaults {
        let has_file = |controllers: bool| cgroups.version == Version::V2 || controllers;
        let mut existing = cgroups.members.iter().filter(|cgroup| !cgroup.created);
        let cgroup = existing.find(|cgroup| has_file(cgroup.has_controller(controller)));
        let Some(path) = cgroup.map(|cgroup| cgroup.path.join(file)) else { continue };
        // Writing a quota, even an unchanged one, makes the kernel walk through all cgroups of the machine.
        if fs::read_to_string(&path).is_ok_and(|current| current.trim() == value.trim()) {
            continue;
        }
        match fs::OpenOptions::new().write(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => opened
                .and_then(|mut file| io::Write::write_all(&mut file, value.as_bytes()))
                .context(|| format!("resetting {}", path.display()))?,
        }
    }
    Ok(())
}
