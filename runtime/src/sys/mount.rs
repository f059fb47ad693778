//! mount_setattr(2).

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

use rustix::{
    fs::CWD,
    io::Errno,
    mount::{MoveMountFlags, move_mount},
};

/// The propagation type of a mount (mount_namespaces(7)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PropagationType {
    Private,
    /// Mounts on the original appear here, but not the other way round.
    Slave,
    Shared,
}

/// Whether the kernel can let a mount join the group of another, which is new in Linux 5.15. An older one refuses that
/// flag before it looks at the paths. A newer one finds no path here.
pub(crate) fn kernel_joins_groups() -> bool {
    move_mount(CWD, "", CWD, "", MoveMountFlags::MOVE_MOUNT_SET_GROUP) != Err(Errno::INVAL)
}

/// Sets the propagation of a mount and of all mounts below it.
pub(crate) fn set_propagation(mount: BorrowedFd<'_>, propagation: PropagationType) -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: 0,
        attr_clr: 0,
        propagation: match propagation {
            PropagationType::Private => libc::MS_PRIVATE,
            PropagationType::Slave => libc::MS_SLAVE,
            PropagationType::Shared => libc::MS_SHARED,
        },
        userns_fd: 0,
    };
    set_attributes(mount, libc::AT_RECURSIVE, &attributes)
}

/// Removes the attributes noexec, nosuid, nodev and read-only from a mount.
pub(crate) fn unrestrict_mount(mount: BorrowedFd<'_>) -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: 0,
        attr_clr: libc::MOUNT_ATTR_NOEXEC | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_RDONLY,
        propagation: 0,
        userns_fd: 0,
    };
    set_attributes(mount, 0, &attributes)
}

/// Makes a mount and all mounts below it read-only.
pub(crate) fn make_readonly(mount: BorrowedFd<'_>) -> io::Result<()> {
    let attributes = libc::mount_attr { attr_set: libc::MOUNT_ATTR_RDONLY, attr_clr: 0, propagation: 0, userns_fd: 0 };
    set_attributes(mount, libc::AT_RECURSIVE, &attributes)
}

/// Makes a mount and all mounts below it private, and also read-only if `readonly` is set. `restricted` sets nosuid and
/// nodev.
pub(crate) fn make_private(mount: BorrowedFd<'_>, readonly: bool, restricted: bool) -> io::Result<()> {
    let mut attr_set = if readonly { libc::MOUNT_ATTR_RDONLY } else { 0 };
    if restricted {
        attr_set |= libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
    }
    let attributes = libc::mount_attr { attr_set, attr_clr: 0, propagation: libc::MS_PRIVATE, userns_fd: 0 };
    set_attributes(mount, libc::AT_RECURSIVE, &attributes)
}

/// Sets the attributes nosuid, nodev and read-only on a mount.
pub(crate) fn restrict_mount(mount: BorrowedFd<'_>) -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_RDONLY,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    set_attributes(mount, 0, &attributes)
}

/// Makes the files of a mount, and of all mounts below it, belong to the ids that a user namespace has for the ids on
/// disk. The mount must be detached.
pub(crate) fn map_ids(mount: BorrowedFd<'_>, namespace: BorrowedFd<'_>) -> io::Result<()> {
    let userns_fd = u64::try_from(namespace.as_raw_fd()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let attributes = libc::mount_attr { attr_set: libc::MOUNT_ATTR_IDMAP, attr_clr: 0, propagation: 0, userns_fd };
    set_attributes(mount, libc::AT_RECURSIVE, &attributes)
}

fn set_attributes(mount: BorrowedFd<'_>, flags: libc::c_int, attributes: &libc::mount_attr) -> io::Result<()> {
    // SAFETY: the path is an empty C string, the attributes outlive the call and their size is passed with them.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | flags,
            std::ptr::from_ref(attributes),
            size_of::<libc::mount_attr>(),
        )
    };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
