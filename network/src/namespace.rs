//! Network namespaces that exist without a process, because they are mounted on a file (pinned).

use std::{
    fs::{self, File},
    io::{self, ErrorKind},
    os::fd::AsFd,
    path::Path,
    thread,
};

use rustix::{
    fs::statfs,
    io::Errno,
    mount::{UnmountFlags, mount_bind, unmount},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

use crate::sys;

/// The type of the file system of namespaces (linux/magic.h).
const NSFS_MAGIC: i64 = 0x6e73_6673;

/// Creates a network namespace with its loopback device only, and pins it to a file. Returns what `prepare` returns,
/// which runs in the namespace.
pub(crate) fn pin<T: Send>(file: &Path, prepare: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    drop(File::create(file)?);
    // Only this new thread leaves the host's network namespace. It ends here.
    thread::scope(|scope| {
        let pinned = scope.spawn(|| -> io::Result<T> {
            sys::unshare_network()?;
            host::sys::loopback_up()?;
            mount_bind("/proc/thread-self/ns/net", file)?;
            prepare()
        });
        pinned.join().unwrap_or_else(|_| Err(io::Error::other("the thread that creates the namespace panicked")))
    })
}

/// Does `action` in a network namespace. This thread stays in its own.
pub(crate) fn inside<T: Send>(namespace: &File, action: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    // Only this new thread enters the namespace. It ends here.
    thread::scope(|scope| {
        let done = scope.spawn(|| {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            action()
        });
        done.join().unwrap_or_else(|_| Err(io::Error::other("the thread in the network namespace panicked")))
    })
}

/// Whether a namespace is pinned to a file. After a reboot the file is still there, without a namespace.
pub(crate) fn is_pinned(file: &Path) -> bool {
    statfs(file).is_ok_and(|statistics| statistics.f_type == NSFS_MAGIC)
}

/// Unmounts the namespace and removes the file. The namespace ends with its last process. A missing file is no error.
pub(crate) fn unpin(file: &Path) -> io::Result<()> {
    // A process that was killed between two mounts may have left more than one.
    while is_pinned(file) {
        match unmount(file, UnmountFlags::DETACH) {
            Ok(()) => {}
            Err(Errno::INVAL | Errno::NOENT) => break,
            Err(error) => return Err(error.into()),
        }
    }
    match fs::remove_file(file) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
