//! The group of incomplete layers that the processes of running containers hold, for the next plugin.
//!
//! The descriptor of a group cannot be opened by a path, so it is copied from a process (pidfd_getfd(2)). A process may
//! hold the group of an earlier plugin whose layers are complete. The kernel tells which files a group announces.

use std::{
    fs, io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::process::{PidfdGetfdFlags, pidfd_getfd};

use super::runtime::Runtime;
use crate::{
    address::is_group,
    error::RuntimeError,
    plan::ContainerId,
    process::{ProcessRecord, ProcessRef},
    state::{GUARD, MONITOR, NO_GUARD_NEEDED},
};

/// The event before a read, in the kernel's list of marks.
const PRE_ACCESS: u64 = 0x0010_0000;

impl Runtime {
    /// The group that announces reads of a file with one of these inodes, if a monitor or a guard holds it.
    pub fn layer_group(&self, inodes: &[u64]) -> Result<Option<OwnedFd>, RuntimeError> {
        for container in self.list()? {
            let task = self.task(&container);
            for record in [MONITOR, GUARD] {
                let record: Option<ProcessRecord> = task.read(record).unwrap_or_default();
                let Some(process) = record.and_then(|record| ProcessRef::find(&record).ok().flatten()) else {
                    continue;
                };
                match group_of(&process, inodes) {
                    Ok(Some(group)) => return Ok(Some(group)),
                    Ok(None) => {}
                    Err(error) => tracing::debug!(%container, %error, "the descriptors of a process are not known"),
                }
            }
        }
        Ok(None)
    }

    /// The containers that had a guard, which may have ended.
    pub fn guarded(&self) -> Result<Vec<ContainerId>, RuntimeError> {
        let mut containers = self.list()?;
        containers.retain(|container| self.task(container).file(GUARD).exists());
        Ok(containers)
    }

    /// The layers of a container are complete: it needs no guard any more.
    pub fn end_guard(&self, container: &ContainerId) -> Result<(), RuntimeError> {
        let task = self.task(container);
        let record: Option<ProcessRecord> = task.read(GUARD)?;
        let Some(record) = record else { return Ok(()) };
        let ended =
            ProcessRef::find(&record).and_then(|guard| guard.map_or(Ok(()), |guard| guard.signal(NO_GUARD_NEEDED)));
        crate::error::Context::context(ended, || format!("ending the guard of {container}"))
    }
}

/// The group of a process that announces reads of one of these inodes.
fn group_of(process: &ProcessRef, inodes: &[u64]) -> io::Result<Option<OwnedFd>> {
    let of = |name: &str| Path::new("/proc").join(process.pid.to_string()).join(name);
    for entry in fs::read_dir(of("fd"))? {
        let entry = entry?;
        if !is_group(&entry.path()) {
            continue;
        }
        let name = entry.file_name().to_string_lossy().into_owned();
        let marks = fs::read_to_string(of("fdinfo").join(&name))?;
        if let Ok(number) = name.parse()
            && announced(&marks).any(|inode| inodes.contains(&inode))
        {
            return Ok(Some(pidfd_getfd(process.pidfd.as_fd(), number, PidfdGetfdFlags::empty())?));
        }
    }
    Ok(None)
}

/// The inodes of files whose reads are announced, from the kernel's description of a group (proc_pid_fdinfo(5)). Pure.
fn announced(marks: &str) -> impl Iterator<Item = u64> {
    marks.lines().filter_map(|line| {
        let field = |name: &str| {
            let value = line.strip_prefix("fanotify ")?.split(' ').find_map(|field| field.strip_prefix(name))?;
            u64::from_str_radix(value, 16).ok()
        };
        Some(field("ino:")?).filter(|_| field("mask:").is_some_and(|mask| mask & PRE_ACCESS != 0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_marks_of_a_group_name_its_files() {
        let marks = "pos:\t0\nflags:\t02004002\nmnt_id:\t16\nino:\t1058\nfanotify flags:68 event-flags:8002\n\
                     fanotify ino:1a2b sdev:fe00000 mflags:0 mask:100000 ignored_mask:0 fhandle-bytes:8 fhandle-type:1 \
                     f_handle:2b1a000000000000\nfanotify ino:77 sdev:fe00000 mflags:0 mask:20 ignored_mask:0\n";
        assert_eq!(announced(marks).collect::<Vec<_>>(), [0x1a2b]);
        assert_eq!(announced("pos:\t0\n").count(), 0);
    }
}
