//! User namespaces: processes in new ones, and the ids of file system operations.

use std::io;

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use super::process::{Fork, clone};

/// Forks a process in a new user namespace without mappings. The caller must have one thread.
pub(crate) fn fork_in_user_namespace() -> io::Result<Fork> {
    clone(libc::CLONE_NEWUSER)
}

/// Like [`fork_sibling`](super::fork_sibling), in a new user namespace without mappings. With `own_pids`, the process
/// is the first one of a new PID namespace, which belongs to that user namespace.
pub(crate) fn fork_sibling_in_user_namespace(own_pids: bool) -> io::Result<Fork> {
    clone(libc::CLONE_PARENT | libc::CLONE_NEWUSER | if own_pids { libc::CLONE_NEWPID } else { 0 })
}

/// Sets the ids with which this thread accesses files, and keeps its effective capabilities. As a side effect the
/// kernel clears the signal of the parent's death.
pub(crate) fn set_file_ids(uid: u32, gid: u32) -> io::Result<()> {
    let sets = capabilities(None)?;
    // SAFETY: both calls take any value and change the credentials of the calling thread only.
    unsafe {
        libc::setfsgid(gid);
        libc::setfsuid(uid);
    }
    // The calls return the previous id, also if they fail. -1 is no id: it changes nothing.
    // SAFETY: as above.
    let now = unsafe { (libc::setfsuid(u32::MAX), libc::setfsgid(u32::MAX)) };
    if now != (uid.cast_signed(), gid.cast_signed()) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    // The kernel removes the capabilities for files when the id changes from 0.
    let CapabilitySets { effective, permitted, inheritable } = sets;
    let effective: CapabilitySet = effective;
    Ok(set_capabilities(None, CapabilitySets { effective, permitted, inheritable })?)
}
