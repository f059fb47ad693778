//! Processes of the driver: the parent of the container, and those that enter it for a command.

use super::tools::nodes_file_below;
use crate::{
    attempt::{Attempt, Refusal, Tried},
    sys::call,
};

/// The program of a process that enters.
pub(crate) const WRITE_PROGRAM: &str = "overwrite the program of an entering process (CVE-2019-5736)";
/// Its descriptors.
pub(crate) const DESCRIPTORS: &str = "read the node's files by a descriptor of an entering process (CVE-2016-9962)";
/// Its root.
pub(crate) const ROOT: &str = "read the node's files by the root of an entering process";
/// Its working directory.
pub(crate) const DIRECTORY: &str = "read the node's files by the directory of an entering process";
/// Its memory.
pub(crate) const MEMORY: &str = "open the memory of an entering process";
/// Its registers.
pub(crate) const TRACE: &str = "trace an entering process (ptrace)";
/// Its variables.
pub(crate) const VARIABLES: &str = "read variables of the agent or the runtime in an entering process";
/// Its mappings.
pub(crate) const MAPPINGS: &str = "read addresses of an entering process (maps)";

/// The attempts of this area.
pub const ALL: &[Attempt] = &[
    Attempt::watched(WRITE_PROGRAM),
    Attempt::watched(DESCRIPTORS),
    Attempt::watched(ROOT),
    Attempt::watched(DIRECTORY),
    Attempt::watched(MEMORY),
    Attempt::watched(TRACE),
    Attempt::watched(VARIABLES),
    Attempt::watched(MAPPINGS),
    Attempt::new("signal the parent of the first process", || parent(|pid| call!(libc::SYS_kill, pid, 0))),
    Attempt::new("trace the parent of the first process", || {
        parent(|pid| call!(libc::SYS_ptrace, libc::PTRACE_SEIZE, pid, 0, 0))
    }),
    Attempt::new("read the node's files by the root of the first process's parent", || {
        parent(|pid| nodes_file_below(&format!("/proc/{pid}/root")))
    }),
    Attempt::new("see the driver's or docker's processes", || {
        let names = ["oci-rs", "dockerd", "containerd-shim", "runc", "nomad"];
        let of_the_node = |path: &std::path::PathBuf| {
            let name = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
            names.iter().any(|known| name.starts_with(known))
        };
        if super::tools::processes().iter().any(of_the_node) { Ok(0) } else { Err(Refusal::Nothing("no process")) }
    }),
];

/// An attempt on the parent of process 1, if the container sees one.
fn parent(attempt: impl Fn(i64) -> Tried) -> Tried {
    let status = std::fs::read_to_string("/proc/1/status")?;
    let pid = status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok());
    match pid.unwrap_or(0) {
        0 => Err(Refusal::Nothing("no process")),
        pid => attempt(pid),
    }
}
