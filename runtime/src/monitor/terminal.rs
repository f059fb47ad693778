//! The container's terminal: its master side, copied to the log.

use std::{
    io::{self, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::OwnedFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::PathBuf,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::{OFlags, fcntl_setfl},
    io::{Errno, read, write},
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg},
    pty::{OpenptFlags, ioctl_tiocgptpeer},
    time::Timespec,
};

use super::output::Stream;
use crate::{
    error::{Context, RuntimeError},
    process::ProcessRef,
    state::TaskDir,
};

/// The socket on which the engine hands over the terminal.
#[derive(Debug)]
pub(super) struct Console {
    listener: UnixListener,
    path: PathBuf,
}

impl Console {
    /// Listens in the task's folder, whose path can be longer than a socket's address.
    pub fn listen(task: &TaskDir) -> Result<Self, RuntimeError> {
        let bind = || -> io::Result<UnixListener> {
            std::env::set_current_dir(task.path())?;
            let listener = UnixListener::bind("console.sock");
            std::env::set_current_dir("/")?;
            listener
        };
        let listener = bind().context(|| "making the terminal's socket".to_owned())?;
        Ok(Self { listener, path: task.file("console.sock") })
    }

    pub fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// Takes the terminal that a created container has sent.
    pub fn accept(self) -> Result<Terminal, RuntimeError> {
        let receive = || -> io::Result<Terminal> {
            let (stream, _) = self.listener.accept()?;
            Terminal::new(receive_fd(&stream)?)
        };
        receive().context(|| "receiving the container's terminal".to_owned())
    }
}

fn receive_fd(stream: &UnixStream) -> io::Result<OwnedFd> {
    let mut payload = [0; 64];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(stream, &mut [IoSliceMut::new(&mut payload)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    control
        .drain()
        .find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        })
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no terminal was sent"))
}

/// The master side of a container's terminal.
#[derive(Debug)]
pub(super) struct Terminal {
    master: OwnedFd,
    /// Without it, the master hangs up whenever no process of the container has the terminal open for a moment.
    _slave: OwnedFd,
}

/// How long the last output may wait for a reader of the log after the container's end.
const PATIENCE: Duration = Duration::from_secs(2);

impl Terminal {
    fn new(master: OwnedFd) -> io::Result<Self> {
        let slave = ioctl_tiocgptpeer(&master, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        fcntl_setfl(&master, OFlags::RDWR | OFlags::NONBLOCK)?;
        Ok(Self { master, _slave: slave })
    }

    /// Copies output to the log until the process has ended, and then what is left.
    pub fn copy_until_end(&self, log: &Stream, process: &ProcessRef) -> io::Result<()> {
        let log = log.writer(OFlags::NONBLOCK)?;
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
            match write(&log, &buffer[pending.clone()]) {
                Ok(count) => pending.start += count,
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let waits_for_log = !pending.is_empty();
            if !wait(&self.master, &log, process, waits_for_log, ended)? && ended && waits_for_log {
                return Ok(());
            }
        }
    }
}

/// Waits until there is something to do; false when the log's reader tried our patience.
fn wait(master: &OwnedFd, log: &OwnedFd, process: &ProcessRef, for_log: bool, ended: bool) -> io::Result<bool> {
    let data = if for_log { PollFd::new(log, PollFlags::OUT) } else { PollFd::new(master, PollFlags::IN) };
    let limit = match (ended, for_log) {
        (false, _) => None,
        (true, true) => Some(PATIENCE),
        (true, false) => Some(Duration::ZERO),
    };
    let limit = limit.map(Timespec::try_from).transpose().map_err(|_| io::ErrorKind::InvalidInput)?;
    let end = PollFd::new(&process.pidfd, PollFlags::IN);
    let result = if ended { poll(&mut [data], limit.as_ref()) } else { poll(&mut [data, end], limit.as_ref()) };
    match result {
        Ok(count) => Ok(count > 0),
        Err(Errno::INTR) => Ok(true),
        Err(error) => Err(error.into()),
    }
}
