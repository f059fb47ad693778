//! The socket to which the engine or a runtime sends the master side of a container's terminal.

use std::{
    io::{self, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::OwnedFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// The file name of the socket.
const NAME: &str = "console.sock";

/// The socket, before the terminal was sent.
#[derive(Debug)]
pub(crate) struct ConsoleSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl ConsoleSocket {
    /// Listens in a directory. The path of that directory can be too long for a socket address, so it becomes the
    /// working directory for a moment.
    pub fn listen(directory: &Path) -> io::Result<Self> {
        std::env::set_current_dir(directory)?;
        let listener = UnixListener::bind(NAME);
        std::env::set_current_dir("/")?;
        Ok(Self { listener: listener?, path: directory.join(NAME) })
    }

    /// The path of the socket.
    pub fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// A short path of the socket, for other programs, which lasts as long as this process has its working directory.
    /// The directory of the socket becomes the working directory.
    pub fn short_path(&self) -> io::Result<PathBuf> {
        std::env::set_current_dir(self.path.parent().unwrap_or(Path::new("/")))?;
        Ok(PathBuf::from(format!("/proc/{}/cwd/{NAME}", std::process::id())))
    }

    /// From now on, [`Self::accept`] fails if the terminal was not sent before.
    pub fn expect_now(&self) -> io::Result<()> {
        self.listener.set_nonblocking(true)
    }

    /// Waits for the terminal.
    pub fn accept(&self) -> io::Result<OwnedFd> {
        let (stream, _) = self.listener.accept()?;
        receive_fd(&stream)
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
