//! A second holder of a container's terminal. If the monitor is killed, the terminal is not hung up.

use std::{
    fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    process::{PidfdGetfdFlags, pidfd_getfd},
    pty::{OpenptFlags, ioctl_tiocgptpeer},
};

use crate::process::ProcessRef;

/// Keeps the terminal from being hung up for as long as this lives.
#[derive(Debug)]
pub struct TerminalHold {
    master: OwnedFd,
    /// Without an open slave side, the master hangs up when no process of the container has the terminal open for a
    /// moment.
    _slave: OwnedFd,
}

impl TerminalHold {
    /// The terminal of the monitor, which has its master side open; `None` if it has none.
    pub(crate) fn of(monitor: &ProcessRef) -> io::Result<Option<Self>> {
        for descriptor in fs::read_dir(format!("/proc/{}/fd", monitor.pid))? {
            let descriptor = descriptor?;
            let is_master = fs::read_link(descriptor.path()).is_ok_and(|path| path.ends_with("ptmx"));
            let number = descriptor.file_name().to_str().and_then(|name| name.parse().ok());
            if let (true, Some(number)) = (is_master, number) {
                let master = pidfd_getfd(&monitor.pidfd, number, PidfdGetfdFlags::empty())?;
                let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
                let slave = ioctl_tiocgptpeer(&master, flags)?;
                return Ok(Some(Self { master, _slave: slave }));
            }
        }
        Ok(None)
    }
}

impl AsFd for TerminalHold {
    /// The master side, in non-blocking mode.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.master.as_fd()
    }
}
