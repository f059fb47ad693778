//! The container's terminal: the monitor takes its master side from the engine and copies its output to the log.

use std::{
    io::{self, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::{UnixListener, UnixStream},
    },
    path::PathBuf,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags},
    fs::{OFlags, fcntl_setfl},
    io::{Errno, read, write},
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg},
    pty::{OpenptFlags, ioctl_tiocgptpeer},
};

use super::drain::{LogDrain, wait};
use crate::{
    error::{Context, RuntimeError},
    logs::LogStream,
    process::ProcessRef,
    state::TaskDir,
};

/// The socket to which the engine sends the terminal's master side.
#[derive(Debug)]
pub(super) struct Console {
    listener: UnixListener,
    path: PathBuf,
}

impl Console {
    /// Listens in the task's directory. The path of that directory can be too long for a socket address, so it becomes
    /// the working directory for a moment.
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

    /// The path of the socket.
    pub fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// Receives the terminal of a created container.
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
    /// Without an open slave side, the master hangs up when no process of the container has the terminal open for a
    /// moment.
    _slave: OwnedFd,
}

/// After the container's end, the last output waits this long for a reader of the log.
const PATIENCE: Duration = Duration::from_secs(2);

impl Terminal {
    fn new(master: OwnedFd) -> io::Result<Self> {
        let slave = ioctl_tiocgptpeer(&master, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        fcntl_setfl(&master, OFlags::RDWR | OFlags::NONBLOCK)?;
        Ok(Self { master, _slave: slave })
    }

    /// Copies output to the log until the process has ended, and then the rest.
    pub fn copy_until_end(&self, log: &LogStream, process: &ProcessRef, drain: &mut LogDrain) -> io::Result<()> {
        let null;
        let log = match &log.held {
            Some(held) => held.both.as_fd(),
            None => {
                null = log.reopen(OFlags::NONBLOCK)?;
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
