//! A fork whose child belongs to our parent.

use std::io;

use rustix::process::Pid;

use super::Fork;

/// Forks; the child is a child of our parent, and a member of the pid namespace that was joined last. The caller has one
/// thread.
pub(crate) fn fork_sibling() -> io::Result<Fork> {
    let flags = libc::c_long::from(libc::CLONE_PARENT | libc::SIGCHLD);
    // SAFETY: without a new stack and without shared memory this is fork(2). With a single thread the child's memory is a
    // consistent copy of ours; the thread id that the C library remembers is used by nothing that the child goes on to do.
    match unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        pid => Pid::from_raw(pid as i32).map(Fork::Parent).ok_or_else(|| io::Error::other("clone returned no pid")),
    }
}
