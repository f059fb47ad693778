//! A mount namespace without mounts of the host. Each container is created in a copy of it.
//!
//! A new mount namespace is a copy of an existing one. Copying the host's costs time for each of its mounts, and every
//! task adds some. So the plugin empties one namespace once, and creators copy it. It keeps no file system of the host
//! busy.
//!
//! Its root is below every mount in each copy, also below the container's root. So it is read-only.

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

/// An empty mount namespace. It exists while this value or a process in it exists.
#[derive(Debug)]
pub(crate) struct EmptyNamespace(OwnedFd);

impl EmptyNamespace {
    /// Creates an empty mount namespace. `directory` may be any directory; it does not change.
    pub fn create(directory: &Path) -> io::Result<Self> {
        thread::scope(|scope| scope.spawn(|| create_empty(directory)).join())
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            .map(Self)
    }

    /// The address for processes that this one starts.
    pub fn address(&self) -> io::Result<NamespaceAddress> {
        let file = HeldFile { descriptor: self.0.as_raw_fd(), number: fstat(&self.0)?.st_ino };
        Ok(NamespaceAddress { pid: process::id(), file })
    }

    /// Opens the namespace at an address. It is an error if the process that holds the namespace has ended.
    pub fn open(address: &NamespaceAddress) -> io::Result<Self> {
        let namespace = open(address.file.path(address.pid), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        // The holder may have ended, and another process may have its pid.
        let same = fstat(&namespace)?.st_ino == address.file.number;
        if same { Ok(Self(namespace)) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }

    /// Moves this process, which must have one thread, to a copy of the namespace.
    pub fn enter(&self) -> io::Result<()> {
        move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Mount))?;
        sys::unshare_mounts()
    }
}

/// Creates a mount namespace for the calling thread and empties it.
fn create_empty(directory: &Path) -> io::Result<OwnedFd> {
    sys::unshare_mounts()?;
    // Unmounting here must not propagate to the host.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let namespace = open("/proc/thread-self/ns/mnt", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::RDONLY;
    // The file system itself is read-only, not only the mount, and it has no inode besides its root.
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
    fn the_namespace_is_empty_and_only_its_own_address_opens_it() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: a mount namespace needs root");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let empty = EmptyNamespace::create(directory.path()).unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "the directory has not changed");
        let address = empty.address().unwrap();
        thread::scope(|scope| {
            let inside = || {
                // A thread can change its mount namespace only if it shares its root and working directory with no
                // other thread. unshare(2) ensures that.
                sys::unshare_mounts().unwrap();
                EmptyNamespace::open(&address).unwrap().enter().unwrap();
                mount_remount("/", MountFlags::BIND, c"").unwrap();
                let made = fs::create_dir("/x").map_err(|error| error.kind());
                assert_eq!(made, Err(io::ErrorKind::ReadOnlyFilesystem), "also if the mount is writable");
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
            assert!(EmptyNamespace::open(&wrong).is_err(), "{wrong}");
        }
    }
}
