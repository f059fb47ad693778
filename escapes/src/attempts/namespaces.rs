//! Namespaces: new ones, and those of the node.

use std::{
    fs,
    os::fd::{AsRawFd, RawFd},
};

use super::tools::{given_number, inode, processes};
use crate::{
    attempt::{Attempt, Refusal, Tried},
    sys::call,
};

/// ioctl requests of namespaces, see ioctl_nsfs(2).
const NS_GET_USERNS: u32 = 0xb701;
const NS_GET_PARENT: u32 = 0xb702;
const NS_MNT_GET_NEXT: u32 = 0x8010_b70b;

/// The attempts of this area.
pub const ALL: &[Attempt] = &[
    Attempt::new("make a mount namespace", || new(libc::CLONE_NEWNS)),
    Attempt::new("make a UTS namespace", || new(libc::CLONE_NEWUTS)),
    Attempt::new("make an IPC namespace", || new(libc::CLONE_NEWIPC)),
    Attempt::new("make a network namespace", || new(libc::CLONE_NEWNET)),
    Attempt::new("make a pid namespace", || new(libc::CLONE_NEWPID)),
    Attempt::new("make a cgroup namespace", || new(libc::CLONE_NEWCGROUP)),
    Attempt::new("make a time namespace", || new(0x80)),
    Attempt::new("make a user namespace (unshare)", || new(libc::CLONE_NEWUSER)),
    Attempt::new("make a user namespace (clone)", || {
        let child = call!(libc::SYS_clone, libc::CLONE_NEWUSER | libc::SIGCHLD, 0, 0, 0, 0)?;
        if child == 0 {
            call!(libc::SYS_exit_group, 0)?;
        }
        Ok(child)
    }),
    Attempt::new("make a user namespace (clone3)", || {
        let mut request = [0_u8; 64];
        request[..8].copy_from_slice(&(libc::CLONE_NEWUSER as u64).to_ne_bytes());
        request[32..40].copy_from_slice(&(libc::SIGCHLD as u64).to_ne_bytes());
        let child = call!(libc::SYS_clone3, &request, 64)?;
        if child == 0 {
            call!(libc::SYS_exit_group, 0)?;
        }
        Ok(child)
    }),
    Attempt::new("make a user and a mount namespace, and mount an overlay", || {
        new(libc::CLONE_NEWUSER | libc::CLONE_NEWNS)?;
        call!(libc::SYS_mount, c"none", super::tools::PLACE, c"overlay", 0, c"lowerdir=/etc:/bin")
    }),
    Attempt::new("make a user, a pid and a mount namespace, and mount a proc", || {
        new(libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID)?;
        call!(libc::SYS_mount, c"none", super::tools::PLACE, c"proc", 0, 0)
    }),
    Attempt::new("map root of the node in a user namespace of its own", || {
        new(libc::CLONE_NEWUSER)?;
        fs::write("/proc/self/uid_map", "0 0 1")?;
        Ok(0)
    }),
    Attempt::new("change the map of its user namespace", || {
        fs::write("/proc/self/uid_map", "0 0 4294967295")?;
        Ok(0)
    }),
    Attempt::new("join the mount namespace again (setns)", || join("/proc/1/ns/mnt", libc::CLONE_NEWNS)),
    Attempt::new("join the network namespace again (setns)", || join("/proc/1/ns/net", libc::CLONE_NEWNET)),
    Attempt::new("join the pid namespace again (setns)", || join("/proc/1/ns/pid", libc::CLONE_NEWPID)),
    Attempt::new("join the namespaces of process 1 (setns of a pidfd)", || {
        let process = call!(libc::SYS_pidfd_open, 1, 0)?;
        call!(libc::SYS_setns, process, libc::CLONE_NEWNS | libc::CLONE_NEWPID)
    }),
    Attempt::new("join the user namespace above (setns)", || {
        let own = fs::File::open("/proc/self/ns/user")?;
        let above = call!(libc::SYS_ioctl, own.as_raw_fd(), NS_GET_PARENT)?;
        call!(libc::SYS_setns, above, libc::CLONE_NEWUSER)
    }),
    Attempt::new("open the pid namespace above", || {
        let own = fs::File::open("/proc/self/ns/pid")?;
        call!(libc::SYS_ioctl, own.as_raw_fd(), NS_GET_PARENT)
    }),
    Attempt::new("open the user namespace above that of its network", || {
        let own = fs::File::open("/proc/self/ns/net")?;
        let user = call!(libc::SYS_ioctl, own.as_raw_fd(), NS_GET_USERNS)?;
        call!(libc::SYS_ioctl, user, NS_GET_PARENT)
    }),
    Attempt::new("open the next mount namespace of the node", || {
        let own = fs::File::open("/proc/self/ns/mnt")?;
        call!(libc::SYS_ioctl, own.as_raw_fd(), NS_MNT_GET_NEXT, &[0_u8; 16])
    }),
    Attempt::new("find a process in another mount namespace", || stranger("mnt")),
    Attempt::new("find a process in another pid namespace", || stranger("pid")),
    Attempt::new("find a process in another network namespace", || stranger("net")),
    Attempt::new("find a process in another user namespace", || stranger("user")),
    Attempt::new("open a process of the node (pidfd_open)", || {
        call!(libc::SYS_pidfd_open, given_number("ESCAPE_PID"), 0)
    }),
    Attempt::new("change the host name", || {
        let name = fs::read_to_string("/proc/sys/kernel/hostname")?;
        call!(libc::SYS_sethostname, &*super::tools::c(name.trim()), name.trim().len())
    }),
    Attempt::new("change the domain name", || call!(libc::SYS_setdomainname, c"(none)", 6)),
    Attempt::new("change the clock of new processes (timens_offsets)", || {
        fs::write("/proc/self/timens_offsets", "monotonic 100 0")?;
        Ok(0)
    }),
];

fn new(flags: i32) -> Tried {
    call!(libc::SYS_unshare, flags)
}

fn join(path: &str, kind: i32) -> Tried {
    let namespace = fs::File::open(path)?;
    let descriptor: RawFd = namespace.as_raw_fd();
    call!(libc::SYS_setns, descriptor, kind)
}

/// A visible process in another namespace than the container's first process.
fn stranger(kind: &str) -> Tried {
    let own = inode(format!("/proc/1/ns/{kind}"))?;
    let other = |path: &std::path::PathBuf| inode(path.join("ns").join(kind)).is_ok_and(|inode| inode != own);
    if processes().iter().any(other) { Ok(0) } else { Err(Refusal::Nothing("no process")) }
}
