//! The container's terminal: the monitor holds its master side and copies its output to the log.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags},
    fs::{OFlags, fcntl_setfl},
    io::{Errno, read, write},
    pty::{OpenptFlags, ioctl_tiocgptpeer},
};

use super::drain::{LogDrain, wait};
use crate::{
    logs::{LogStream, open_handle},
    process::ProcessRef,
};

/// The master side of a container's terminal.
#[derive(Debug)]
pub(super) struct Terminal {
    master: OwnedFd,
    /// Without an open slave side, the master hangs up when no process of the container has the terminal open for a
    /// moment. A sandbox opens a terminal of the node, in a mount namespace that has ended, and holds the slave side.
    _slave: Option<OwnedFd>,
}

/// After the container's end, the last output waits this long for a reader of the log.
const PATIENCE: Duration = Duration::from_secs(2);

impl Terminal {
    pub fn new(master: OwnedFd) -> io::Result<Self> {
        let slave = match ioctl_tiocgptpeer(&master, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC) {
            Err(Errno::NODEV) => None,
            slave => Some(slave?),
        };
        fcntl_setfl(&master, OFlags::RDWR | OFlags::NONBLOCK)?;
        Ok(Self { master, _slave: slave })
    }

    /// Copies output to the log until the process has ended, and then the rest.
    pub fn copy_until_end(&self, log: &LogStream, process: &ProcessRef, drain: &mut LogDrain) -> io::Result<()> {
        let null;
        let log = match &log.held {
            Some(held) => held.both.as_fd(),
            None => {
                null = open_handle(log.handle(), OFlags::RDWR | OFlags::NONBLOCK)?;
                null.as_fd()
            }
        };
        let mut buffer = [0; 4096];
        let mut pending = 0..0;
        loop {
            let ended = process.ended();
            if pending.is_empty() {
                pending = match read(&self.master, &mut buffer) {
                    Ok(0) | Err(Errno::IO) => return Ok(()),
                    Ok(count) => 0..count,
                    Err(Errno::AGAIN) if ended => return Ok(()),
                    Err(Errno::AGAIN | Errno::INTR) => 0..0,
                    Err(error) => return Err(error.into()),
                };
            }
            match write(log, &buffer[pending.clone()]) {
                Ok(count) => pending.start += count,
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            match (pending.is_empty(), ended) {
                (true, true) => {}
                (true, false) => drain.until_content(&self.master)?,
                (false, false) => drain.until_room(log)?,
                (false, true) if wait(&mut [PollFd::from_borrowed_fd(log, PollFlags::OUT)], Some(PATIENCE))? => {}
                (false, true) => return Ok(()),
            }
        }
    }
}
