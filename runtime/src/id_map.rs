//! The ids of a container that has a user namespace of its own, for the processes outside of it.
//!
//! The container's ids 0 to 65535 are a range of ids of the node. Files on disk keep the container's ids: each mount of
//! the container is id-mapped, so root's files belong to root on disk and to the container's root in the container. A
//! process of ours that makes files on such mounts needs the ids of the range, because other ids do not exist there.

use std::{
    fs,
    io::{self, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{Mode, OFlags, open},
    process::{Gid, Uid, getppid, parent_process_death_signal, set_parent_process_death_signal},
    thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid},
};

use crate::{
    error::{Context, RuntimeError},
    plan::{IDS_PER_CONTAINER, IdRange},
    sys,
};

/// A mapping of ids for mounts.
#[derive(Debug)]
pub(crate) struct IdMap {
    range: IdRange,
    /// A user namespace with this mapping. No process is in it.
    namespace: OwnedFd,
}

impl IdMap {
    /// Makes a user namespace with the mapping. `/proc` must be the node's. Where the node makes none, or no more now,
    /// the error is a [`RuntimeError::UserNamespace`].
    pub fn new(range: IdRange) -> Result<Self, RuntimeError> {
        let is_full = |error: &io::Error| error.raw_os_error() == Some(libc::ENOSPC);
        Self::make(range, |error| is_full(error) || refuses_namespaces(error))
    }

    /// Like [`Self::new`], but the error is a [`RuntimeError::UserNamespace`] only if the next attempt will fail too.
    pub fn probe(range: IdRange) -> Result<Self, RuntimeError> {
        Self::make(range, refuses_namespaces)
    }

    fn make(range: IdRange, is_refusal: impl FnOnce(&io::Error) -> bool) -> Result<Self, RuntimeError> {
        let namespace = sys::with_user_namespace(|pid| {
            map_process(pid, range)?;
            Self::namespace_of(pid)
        });
        match namespace {
            Ok(namespace) => Ok(Self { range, namespace }),
            Err(error) if is_refusal(&error) => {
                let text = format!("this node makes no user namespace: {error} (see sysctl user.max_user_namespaces)");
                Err(RuntimeError::UserNamespace(text))
            }
            Err(error) => Err(error).context(|| "making a user namespace".to_owned()),
        }
    }

    /// The mapping of a running container, by its first process.
    pub fn of_process(pid: i32, range: IdRange) -> io::Result<Self> {
        Ok(Self { range, namespace: Self::namespace_of(pid)? })
    }

    fn namespace_of(pid: i32) -> io::Result<OwnedFd> {
        Ok(open(format!("/proc/{pid}/ns/user"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// The ids of the container.
    pub fn range(&self) -> IdRange {
        self.range
    }

    /// Maps the ids of a detached mount and of all mounts below it.
    pub fn apply(&self, mount: BorrowedFd<'_>) -> io::Result<()> {
        sys::map_ids(mount, self.namespace.as_fd()).map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => io::Error::new(
                io::ErrorKind::Unsupported,
                "its file system, or one that is mounted in it, does not support id-mapped mounts on this kernel",
            ),
            Some(libc::EPERM) => {
                io::Error::new(io::ErrorKind::Unsupported, "it is, or contains, a mount that is id-mapped already")
            }
            _ => error,
        })
    }
}

/// The largest number of user namespaces.
fn max_user_namespaces() -> Option<u64> {
    fs::read_to_string("/proc/sys/user/max_user_namespaces").ok()?.trim().parse().ok()
}

/// Whether an error says that this kernel makes no user namespace, or none for this process. All other errors may be
/// gone at the next attempt: the node has too little memory, or too many descriptors, processes or namespaces now.
/// `limit` is the largest number of user namespaces.
fn is_refusal(error: &io::Error, limit: impl FnOnce() -> Option<u64>) -> bool {
    match error.raw_os_error() {
        // EACCES comes from a security module.
        Some(libc::EPERM | libc::EACCES | libc::EINVAL | libc::ENOSYS) => true,
        Some(libc::ENOSPC) => limit() == Some(0),
        _ => false,
    }
}

/// Whether the kernel refuses user namespaces with this error, or with its limit of them.
pub(crate) fn refuses_namespaces(error: &io::Error) -> bool {
    is_refusal(error, max_user_namespaces)
}

/// Writes the mappings of a process in a new user namespace.
pub(crate) fn map_process(pid: i32, range: IdRange) -> io::Result<()> {
    let mapping = format!("0 {} {IDS_PER_CONTAINER}\n", range.first);
    for file in ["uid_map", "gid_map"] {
        fs::File::options().write(true).open(format!("/proc/{pid}/{file}"))?.write_all(mapping.as_bytes())?;
    }
    Ok(())
}

/// Makes this process root of the user namespace that it is in. Its former ids do not exist there.
pub(crate) fn become_root() -> io::Result<()> {
    set_thread_groups(&[])?;
    let (uid, gid) = (Uid::ROOT, Gid::ROOT);
    set_thread_res_gid(gid, gid, gid)?;
    Ok(set_thread_res_uid(uid, uid, uid)?)
}

/// Does `action` on files with the ids of the root of a container. Without a range this is the node's root, which the
/// caller is anyway. The caller must have one thread.
pub(crate) fn as_root_of<T>(range: Option<IdRange>, action: impl FnOnce() -> T) -> io::Result<T> {
    let Some(IdRange { first }) = range else { return Ok(action()) };
    set_file_ids(first)?;
    let result = action();
    set_file_ids(0)?;
    Ok(result)
}

/// Sets both ids. The process still ends with its parent.
fn set_file_ids(id: u32) -> io::Result<()> {
    let (signal, parent) = (parent_process_death_signal()?, getppid());
    sys::set_file_ids(id, id)?;
    if signal.is_some() {
        set_parent_process_death_signal(signal)?;
        if getppid() != parent {
            return Err(io::Error::other("the parent process has ended"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_that_stay_are_refusals() {
        for (error, limit, expected) in [
            (libc::EPERM, Some(9), true),
            (libc::EACCES, Some(9), true),
            (libc::EINVAL, None, true),
            (libc::ENOSYS, Some(9), true),
            (libc::ENOSPC, Some(0), true),
            (libc::ENOSPC, Some(9), false),
            (libc::ENOSPC, None, false),
            (libc::EMFILE, Some(0), false),
            (libc::ENFILE, Some(0), false),
            (libc::ENOMEM, Some(0), false),
            (libc::EAGAIN, Some(0), false),
        ] {
            let error = io::Error::from_raw_os_error(error);
            assert_eq!(is_refusal(&error, || limit), expected, "{error}, {limit:?}");
        }
        assert!(!is_refusal(&io::Error::other("the process was killed"), || Some(0)));
    }
}
