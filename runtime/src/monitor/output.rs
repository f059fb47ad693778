//! Where a container's output goes.
//!
//! A FIFO is opened without following a link, for reading and writing, by the monitor and for the container: as long as either lives,
//! the death of the FIFO's reader does not kill the container with SIGPIPE, whoever else is dead, and its successor finds the FIFO
//! in order. When both have ended, the reader sees the end of the output.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::Path,
};

use rustix::fs::{CWD, FileType, Gid, Mode, OFlags, Uid, fchown, fstat, open, openat};

use crate::{
    error::{StartError, StartErrorKind},
    fifo::Fifo,
    plan::Output,
};

/// Standard output and standard error.
#[derive(Debug)]
pub(super) struct Outputs {
    pub stdout: Stream,
    pub stderr: Stream,
}

/// One of them.
#[derive(Debug)]
pub(super) struct Stream {
    /// An O_PATH handle on what was checked.
    handle: OwnedFd,
    /// Both ends of a FIFO, which do not block.
    pub held: Option<(Fifo, OwnedFd)>,
}

impl Outputs {
    pub fn open(output: &Output) -> Result<Self, StartError> {
        Ok(Self { stdout: Stream::open(&output.stdout)?, stderr: Stream::open(&output.stderr)? })
    }

    /// Makes FIFOs the user's own, so that it can open `/dev/stdout` anew. Their other reader is root.
    pub fn give_to(&self, uid: u32, gid: u32) -> io::Result<()> {
        for stream in [&self.stdout, &self.stderr] {
            if stream.held.is_some() && uid != 0 {
                fchown(stream.open_anew(OFlags::empty())?, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
            }
        }
        Ok(())
    }
}

impl Stream {
    fn open(path: &Path) -> Result<Self, StartError> {
        let failed = |problem: String| {
            StartError::new(StartErrorKind::Invalid, format!("log output {}: {problem}", path.display()))
        };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open_checked = || -> io::Result<Self> {
            let handle = openat(CWD, path, flags, Mode::empty())?;
            let stat = fstat(&handle)?;
            let held = match FileType::from_raw_mode(stat.st_mode) {
                FileType::Fifo => Some((Fifo::of(&handle, path)?, reopen(&handle, OFlags::RDWR | OFlags::NONBLOCK)?)),
                FileType::CharacterDevice if stat.st_rdev == rustix::fs::makedev(1, 3) => None,
                _ => return Err(io::Error::new(io::ErrorKind::InvalidInput, "neither a FIFO nor /dev/null")),
            };
            Ok(Self { handle, held })
        };
        open_checked().map_err(|error| failed(error.to_string()))
    }

    /// Open for reading and writing.
    pub fn open_anew(&self, flags: OFlags) -> io::Result<OwnedFd> {
        reopen(&self.handle, OFlags::RDWR | flags)
    }
}

/// Opens what a handle stands for.
fn reopen(handle: &OwnedFd, flags: OFlags) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", handle.as_fd().as_raw_fd());
    Ok(open(path, flags | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?)
}
