//! The cgroup version of this machine.

use std::io;

use serde::{Deserialize, Serialize};

/// The directory in which all cgroup hierarchies are mounted.
pub(super) const ROOT: &str = "/sys/fs/cgroup";

/// The cgroup version that enforces limits on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Version {
    /// One hierarchy per controller. An empty unified hierarchy may be mounted beside them (hybrid mode).
    V1,
    /// The unified hierarchy.
    V2,
}

/// Finds the version by the type of the file system on `/sys/fs/cgroup`.
pub fn version() -> io::Result<Version> {
    const CGROUP2_SUPER_MAGIC: u64 = 0x6367_7270;
    let file_system = rustix::fs::statfs(ROOT)?;
    Ok(if file_system.f_type as u64 == CGROUP2_SUPER_MAGIC { Version::V2 } else { Version::V1 })
}
