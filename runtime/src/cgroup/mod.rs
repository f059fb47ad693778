//! Control groups: which version rules here, and our containers' groups.

pub mod stats;

use std::io;

/// Which generation of control groups enforces limits on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// One hierarchy per controller, also when an empty unified one is mounted beside them.
    V1,
    /// The unified hierarchy.
    V2,
}

/// Finds the mode by the kind of file system on `/sys/fs/cgroup`.
pub fn mode() -> io::Result<Mode> {
    let file_system = rustix::fs::statfs("/sys/fs/cgroup")?;
    Ok(if file_system.f_type as u64 == CGROUP2_SUPER_MAGIC { Mode::V2 } else { Mode::V1 })
}

const CGROUP2_SUPER_MAGIC: u64 = 0x6367_7270;
