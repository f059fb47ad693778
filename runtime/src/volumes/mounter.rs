//! The mounter: a process for one call that may hang in the kernel. It mounts in a mount namespace of its own, so a
//! mounter that is killed leaves nothing, and sends a copy of the mount to the plugin.

use std::{
    ffi::CString,
    io,
    net::{IpAddr, ToSocketAddrs},
    os::fd::{AsFd, OwnedFd},
    path::Path,
    process::ExitCode,
};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, open, statx},
    io::{Errno, fcntl_dupfd_cloexec},
    mount::{
        FsOpenFlags, MountFlags, MountPropagationFlags, OpenTreeFlags, UnmountFlags, fsconfig_set_flag,
        fsconfig_set_string, fsopen, mount, mount_change, mount_remount, open_tree, unmount,
    },
    process::{DumpableBehavior, Signal, set_dumpable_behavior, set_parent_process_death_signal},
};

use super::{
    call::{CallProblem, MountCall},
    confine::confine,
    options::VolumeOptions,
    problem::{VolumeError, mount_failed},
    protocol::{Answer, Order},
};
use crate::{
    packets::{receive, send},
    sys,
};

/// The process's `main`: carries out one order from standard input.
pub(crate) fn main() -> ExitCode {
    // An error is not sent: the connection has failed, and the plugin sees the end of this process.
    if settle().and_then(|plugin| serve(&plugin)).is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Detaches this process from the plugin, except for the returned connection and a common end.
fn settle() -> io::Result<OwnedFd> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    sys::close_descriptors(3, u32::MAX)?;
    // The memory may hold a password.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let plugin = fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    rustix::thread::set_name(c"oci-rs:mount")?;
    std::env::set_current_dir("/")?;
    Ok(plugin)
}

fn serve(plugin: &OwnedFd) -> io::Result<()> {
    let Some((order, _)) = receive::<Order>(plugin)? else { return Ok(()) };
    if let Err(error) = confine(&order) {
        let refused: Answer = Err(VolumeError::passing(format!("giving up rights: {error}")));
        return send(plugin, &refused, &[]);
    }
    let done = match order {
        Order::Mount { options, place } => mounted(&options, &place).map(Some),
        Order::Ask { path } => ask(&path).map(|()| None),
        Order::Unmount { path } => unmounted(&path).map(|()| None),
    };
    let (answer, tree): (Answer, _) = match done {
        Ok(tree) => (Ok(()), tree),
        Err(error) => (Err(error), None),
    };
    let descriptors: Vec<_> = tree.as_ref().map(AsFd::as_fd).into_iter().collect();
    send(plugin, &answer, &descriptors)
}

/// Mounts a volume at a place that only this process sees, and copies the mount.
fn mounted(options: &VolumeOptions, place: &Path) -> Result<OwnedFd, VolumeError> {
    let call = MountCall::decide(options, resolve).map_err(|problem| match problem {
        CallProblem::Server(name) => VolumeError::passing(format!(
            "the node cannot resolve the server's name {name:?}: see option `o` or `device`, and the node's \
             /etc/resolv.conf"
        )),
        CallProblem::Remount => VolumeError::lasting("option `o`: `remount` makes no volume; remove it"),
    })?;
    let own_namespace = || -> io::Result<()> {
        sys::unshare_mounts()?;
        // Unmounts on the node still come through: a file system that is unmounted there meanwhile must not stay busy.
        Ok(mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?)
    };
    own_namespace().map_err(|error| VolumeError::passing(format!("making a mount namespace: {error}")))?;
    make(&call, place).map_err(|errno| mount_failed(options, errno, wrong_option(options, errno).as_deref()))?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    open_tree(CWD, place, flags).map_err(|errno| mount_failed(options, errno, None))
}

/// Calls mount(2) as dockerd does: read-only binds need a second call.
fn make(call: &MountCall, place: &Path) -> Result<(), Errno> {
    let data = CString::new(call.data.as_str()).map_err(|_| Errno::INVAL)?;
    let flags = MountFlags::from_bits_retain(call.flags);
    mount(call.device.as_str(), place, call.kind.as_str(), flags, data.as_c_str())?;
    if flags.contains(MountFlags::BIND | MountFlags::RDONLY) {
        mount_remount(place, flags, c"")?;
    }
    Ok(())
}

/// What the kernel says about the first wrong option, if a call failed because of one. Nothing is mounted for it.
/// Passwords are left out before the options are split: a part of one must not pass for an option's name.
fn wrong_option(options: &VolumeOptions, errno: Errno) -> Option<String> {
    if errno != Errno::INVAL || options.is_bind() {
        return None;
    }
    let options = options.without_secrets();
    let call = MountCall::decide(&options, resolve).ok()?;
    let context = fsopen(call.kind.as_str(), FsOpenFlags::FSOPEN_CLOEXEC).ok()?;
    for option in options.split(&call.data) {
        let set = match option.split_once('=') {
            Some((name, value)) => fsconfig_set_string(context.as_fd(), name, value),
            None => fsconfig_set_flag(context.as_fd(), option),
        };
        if set.is_err() {
            // The kernel repeats the value only of options that are no passwords. The name alone is certain to be fit
            // for a text.
            return Some(format!("`{}` is unknown, or its value is wrong", option.split('=').next().unwrap_or(option)));
        }
    }
    None
}

/// The addresses of a server.
fn resolve(name: &str) -> Option<Vec<IpAddr>> {
    Some((name, 0).to_socket_addrs().ok()?.map(|address| address.ip()).collect())
}

/// Asks for an attribute of a mounted root that the file system must ask its server for.
fn ask(path: &Path) -> Result<(), VolumeError> {
    let asked = || -> Result<(), Errno> {
        let root = open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        statx(&root, "", AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS).map(drop)
    };
    asked().map_err(|errno| {
        let error = io::Error::from(errno);
        VolumeError::passing(format!(
            "the mounted file system answers with an error: {error}; see the server or device"
        ))
    })
}

/// Unmounts a path. The mount disappears at once, also if it is in use or its server does not answer; this process
/// then waits until the kernel has written everything back.
fn unmounted(path: &Path) -> Result<(), VolumeError> {
    match unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        // It is not mounted.
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(errno) => {
            let error = io::Error::from(errno);
            Err(VolumeError::passing(format!("unmounting {}: {error}", path.display())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_option_is_named_and_no_part_of_a_password() {
        let wrong = |kind: &str, mount_options: &str| {
            let [kind, device, mount_options] = [kind, "x", mount_options].map(str::to_owned);
            let options = VolumeOptions { kind, device, mount_options, forgotten: Vec::new() };
            wrong_option(&options, Errno::INVAL)
        };
        let named = wrong("tmpfs", "password=hun,secret=ter2,size=1m,sizze=1").expect("the kernel refuses one");
        assert!(named.starts_with("`sizze` is unknown"), "{named}");
        assert_eq!(wrong("tmpfs", "password=s,size=1m"), None);
        // Kernels without this file system say nothing.
        for kind in ["cifs", "smb3"] {
            let named = wrong(kind, "password=s,,ecret,username=app,nonsense=1").unwrap_or_default();
            assert!(!named.contains("ecret"), "{named}");
        }
    }
}
