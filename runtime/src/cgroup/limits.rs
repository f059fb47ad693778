//! Limits that an earlier container left in a group that outlives it.

use std::{fs, io};

use super::{Groups, Mode};
use crate::error::{Context, RuntimeError};

/// What a fresh group holds, in an order in which each can be written: `memory.memsw` never below `memory.limit`.
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

/// Takes all limits off the groups that were there before: a task that is started again must not inherit a limit that its
/// new plan lacks. A file that does not exist here limits nothing.
pub(crate) fn reset_limits(groups: &Groups) -> Result<(), RuntimeError> {
    let defaults: &[_] = match groups.mode {
        Mode::V1 => &V1_DEFAULTS,
        Mode::V2 => &V2_DEFAULTS,
    };
    for (controller, file, value) in defaults {
        let group =
            groups.members.iter().find(|group| !group.ours && (groups.mode == Mode::V2 || group.holds(controller)));
        let Some(path) = group.map(|group| group.path.join(file)) else { continue };
        // To write a quota, even the same, the kernel walks through all groups of the machine.
        if fs::read_to_string(&path).is_ok_and(|now| now.trim() == value.trim()) {
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
