//! mount_setattr(2), which rustix lacks.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

/// How mounts below a mount travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PropagationType {
    Private,
    Shared,
}

/// Sets the propagation of a mount and of all below it.
pub(crate) fn set_propagation(mount: BorrowedFd<'_>, propagation: PropagationType) -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: 0,
        attr_clr: 0,
        propagation: match propagation {
            PropagationType::Private => libc::MS_PRIVATE,
            PropagationType::Shared => libc::MS_SHARED,
        },
        userns_fd: 0,
    };
    // SAFETY: the path is an empty C string, the attributes outlive the call and their size is passed with them.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | libc::AT_RECURSIVE,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
