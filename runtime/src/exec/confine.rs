//! The rights of an exec helper after its command has begun.
//!
//! From then on it waits for the command and for the plugin, and ends the processes of the command: it finds them in
//! the container's cgroup and in `/proc`, and may signal processes of all users.

use std::{io, path::Path};

use confinement::{Access, Confinement, Files, OwnCalls, Place, calls};
use rustix::thread::CapabilitySet;

const CALLS: &[&str] = &["getsid", "recvmsg", "sendmsg"];

/// Gives up everything that the helper of a running command does not need. `cgroup` is the one in which it looks for
/// the command's processes.
pub(super) fn confine(cgroup: Option<&Path>) -> io::Result<()> {
    let places = [Some(Path::new("/proc")), cgroup].into_iter().flatten();
    let files =
        Files { places: places.map(|path| (Place::Path(path), Access::Read)).collect(), tcp: false, signals: true };
    let calls = OwnCalls { any: &[calls::BASE, calls::FILES, calls::PROCESSES, CALLS], checked: calls::CHECKED };
    Confinement { capabilities: CapabilitySet::KILL, calls, files: Some(files) }.apply()
}
