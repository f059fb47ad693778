//! Network namespaces that live without a process, because a file of ours holds them.

use std::{
    fs::{self, File},
    io::{self, ErrorKind},
    path::Path,
    thread,
};

use rustix::{
    fs::statfs,
    io::Errno,
    mount::{UnmountFlags, mount_bind, unmount},
};

use crate::sys;

/// The file system of namespaces (linux/magic.h).
const NSFS_MAGIC: i64 = 0x6e73_6673;

/// Makes a namespace with nothing but its loopback device, and pins it to a file.
pub(crate) fn pin(file: &Path) -> io::Result<()> {
    drop(File::create(file)?);
    // Only this thread leaves the host's network, and it ends here.
    thread::scope(|scope| {
        let made = scope.spawn(|| -> io::Result<()> {
            sys::leave_network()?;
            host::sys::loopback_up()?;
            Ok(mount_bind("/proc/thread-self/ns/net", file)?)
        });
        made.join().unwrap_or_else(|_| Err(io::Error::other("the thread that makes namespaces panicked")))
    })
}

/// Whether a file holds a namespace: after a restart of the machine it is nothing but a file.
pub(crate) fn is_pinned(file: &Path) -> bool {
    statfs(file).is_ok_and(|system| system.f_type == NSFS_MAGIC)
}

/// Lets a namespace go; it ends with its last process. One that is gone is fine.
pub(crate) fn unpin(file: &Path) -> io::Result<()> {
    // A killed process may have come to the second mount of two.
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
