//! The groups by which fanotify(7) announces reads, as processes of the driver hold them.

use std::{fs, io, os::fd::OwnedFd, path::Path};

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::sys;

/// Copies of the groups that a process holds.
pub fn groups_of(pid: i32) -> io::Result<Vec<OwnedFd>> {
    let process = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
    let pidfd = pidfd_open(process, PidfdFlags::empty())?;
    let mut groups = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let entry = entry?;
        let is_group = fs::read_link(entry.path()).is_ok_and(|target| target.as_os_str() == "anon_inode:[fanotify]");
        if let (true, Ok(number)) = (is_group, entry.file_name().to_string_lossy().parse()) {
            groups.push(pidfd_getfd(&pidfd, number, PidfdGetfdFlags::empty())?);
        }
    }
    Ok(groups)
}

/// Has reads of a file announced to a group no longer.
pub fn forget(group: &OwnedFd, file: &Path) -> io::Result<()> {
    sys::forget_reads(group, &fs::File::open(file)?)
}
