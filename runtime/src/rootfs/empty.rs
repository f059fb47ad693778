//! A mount namespace in which nothing of the host is mounted, from which each container is begun.
//!
//! A namespace is made as a copy of another, and a copy of the host's costs time for each of its mounts, of which every
//! task of the node brings some. So one is emptied once for all, and creators copy that. It holds on to no file system
//! of the host.
//!
//! Its root stays the root of every copy, below whatever is mounted there, also below the container's own. So nothing
//! can be written to it.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::Path,
    process, thread,
};

use rustix::{
    fs::{Mode, OFlags, fstat, open},
    mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount},
    process::{chdir, pivot_root},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

use crate::{
    address::{HeldFile, NamespaceAddress},
    sys,
};

/// An empty mount namespace, for as long as this is kept or a process is in it.
#[derive(Debug)]
pub(crate) struct EmptyMounts(OwnedFd);

impl EmptyMounts {
    /// Makes one. `directory` is any directory; it is as before afterwards.
    pub fn make(directory: &Path) -> io::Result<Self> {
        thread::scope(|scope| scope.spawn(|| empty(directory)).join())
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            .map(Self)
    }

    /// The address for processes that this one starts.
    pub fn address(&self) -> io::Result<NamespaceAddress> {
        let file = HeldFile { descriptor: self.0.as_raw_fd(), number: fstat(&self.0)?.st_ino };
        Ok(NamespaceAddress { pid: process::id(), file })
    }

    /// The namespace at an address. It is an error if the process that holds the namespace has ended.
    pub fn at(address: &NamespaceAddress) -> io::Result<Self> {
        let found = open(address.file.path(address.pid), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        // The holder may have ended, and another process may have its pid.
        let same = fstat(&found)?.st_ino == address.file.number;
        if same { Ok(Self(found)) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }

    /// Moves this process, which must have one thread only, into a copy of it.
    pub fn enter(&self) -> io::Result<()> {
        move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Mount))?;
        sys::unshare_mounts()
    }
}

/// Empties a mount namespace of the calling thread's own.
fn empty(directory: &Path) -> io::Result<OwnedFd> {
    sys::unshare_mounts()?;
    // What is unmounted here must stay on the host.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let namespace = open("/proc/thread-self/ns/mnt", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::RDONLY;
    // The file system itself has room for its root alone and is read-only, not only the way to it.
    mount("tmpfs", directory, "tmpfs", flags, Some(c"mode=555,nr_inodes=1"))?;
    chdir(directory)?;
    pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    Ok(namespace)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::mount::mount_remount;

    use super::*;

    #[test]
    fn nothing_of_the_host_is_mounted_in_it_and_nothing_else_is_taken_for_it() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: a mount namespace needs root");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let empty = EmptyMounts::make(directory.path()).unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "the directory is as before");
        let address = empty.address().unwrap();
        thread::scope(|scope| {
            let inside = || {
                // A namespace can be left by a thread that shares its root and working directory with no other.
                sys::unshare_mounts().unwrap();
                EmptyMounts::at(&address).unwrap().enter().unwrap();
                mount_remount("/", MountFlags::BIND, c"").unwrap();
                let made = fs::create_dir("/x").map_err(|error| error.kind());
                assert_eq!(made, Err(io::ErrorKind::ReadOnlyFilesystem), "whatever the mount says");
                fs::read_dir("/").unwrap().count()
            };
            assert_eq!(scope.spawn(inside).join().unwrap(), 0);
        });
        let NamespaceAddress { pid, file } = address;
        let other_file = fs::File::open("/dev/null").unwrap();
        for wrong in [
            NamespaceAddress { pid, file: HeldFile { number: file.number * 10, ..file } },
            NamespaceAddress { pid, file: HeldFile { descriptor: other_file.as_raw_fd(), ..file } },
            NamespaceAddress { pid, file: HeldFile { descriptor: 9999, ..file } },
            NamespaceAddress { pid: 1, file },
        ] {
            assert!(EmptyMounts::at(&wrong).is_err(), "{wrong}");
        }
    }
}
