//! Opening a container's logs.
//!
//! A log is a FIFO or `/dev/null`. A FIFO is opened without following a link, for reading and writing, by the monitor
//! and for the container. As long as either lives, the death of the FIFO's reader does not kill the container with
//! SIGPIPE, and the next reader finds the FIFO in order. When both have ended, the reader sees the end of the output.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::Path,
};

use rustix::fs::{CWD, FileType, Gid, Mode, OFlags, Uid, fchown, fstat, open, openat};

use super::{fifo::Fifo, stream::OutputStream};
use crate::{
    error::{StartError, StartErrorKind},
    plan::Output,
};

/// The logs of standard output and standard error.
#[derive(Debug)]
pub(crate) struct Outputs {
    pub stdout: LogStream,
    pub stderr: LogStream,
}

/// One log.
#[derive(Debug)]
pub(crate) struct LogStream {
    /// An O_PATH handle on the checked file.
    handle: OwnedFd,
    /// If the log is a FIFO: both ends of it, in non-blocking mode.
    pub held: Option<(Fifo, OwnedFd)>,
}

impl Outputs {
    /// Opens both logs.
    pub fn open(output: &Output) -> Result<Self, StartError> {
        Ok(Self { stdout: LogStream::open(&output.stdout)?, stderr: LogStream::open(&output.stderr)? })
    }

    /// The log of one stream.
    pub fn log(&self, stream: OutputStream) -> &LogStream {
        match stream {
            OutputStream::Stdout => &self.stdout,
            OutputStream::Stderr => &self.stderr,
        }
    }

    /// Makes the user the owner of the FIFOs, so that its processes can open `/dev/stdout` again. Their reader is root.
    pub fn give_to(&self, uid: u32, gid: u32) -> io::Result<()> {
        for stream in [&self.stdout, &self.stderr] {
            if stream.held.is_some() && uid != 0 {
                fchown(stream.reopen(OFlags::empty())?, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
            }
        }
        Ok(())
    }
}

impl LogStream {
    fn open(path: &Path) -> Result<Self, StartError> {
        let failed = |problem: String| {
            StartError::new(StartErrorKind::Invalid, format!("log output {}: {problem}", path.display()))
        };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open_checked = || -> io::Result<Self> {
            let handle = openat(CWD, path, flags, Mode::empty())?;
            let stat = fstat(&handle)?;
            let held = match FileType::from_raw_mode(stat.st_mode) {
                FileType::Fifo => {
                    Some((Fifo::of(&handle, path)?, open_handle(&handle, OFlags::RDWR | OFlags::NONBLOCK)?))
                }
                FileType::CharacterDevice if stat.st_rdev == rustix::fs::makedev(1, 3) => None,
                _ => return Err(io::Error::new(io::ErrorKind::InvalidInput, "neither a FIFO nor /dev/null")),
            };
            Ok(Self { handle, held })
        };
        open_checked().map_err(|error| failed(error.to_string()))
    }

    /// Opens the log once more, for reading and writing.
    pub fn reopen(&self, flags: OFlags) -> io::Result<OwnedFd> {
        open_handle(&self.handle, OFlags::RDWR | flags)
    }
}

/// Opens the file that a handle refers to.
fn open_handle(handle: &OwnedFd, flags: OFlags) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", handle.as_fd().as_raw_fd());
    Ok(open(path, flags | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?)
}
