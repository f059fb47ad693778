//! The namespaces of a container.

use std::{fs::read_link, io};

use rustix::thread::ThreadNameSpaceType;

/// The kinds of namespaces in which a process is not in ours.
pub(super) fn foreign_namespaces(pid: i32) -> io::Result<ThreadNameSpaceType> {
    const KINDS: [(&str, ThreadNameSpaceType); 8] = [
        ("user", ThreadNameSpaceType::USER),
        ("mnt", ThreadNameSpaceType::MOUNT),
        ("pid", ThreadNameSpaceType::PROCESS_ID),
        ("net", ThreadNameSpaceType::NETWORK),
        ("ipc", ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION),
        ("uts", ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME),
        ("cgroup", ThreadNameSpaceType::CONTROL_GROUP),
        ("time", ThreadNameSpaceType::TIME),
    ];
    let mut foreign = ThreadNameSpaceType::empty();
    for (name, kind) in KINDS {
        let own = match read_link(format!("/proc/self/ns/{name}")) {
            // The kernel does not have this kind.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            own => own?,
        };
        if own != read_link(format!("/proc/{pid}/ns/{name}"))? {
            foreign |= kind;
        }
    }
    Ok(foreign)
}
