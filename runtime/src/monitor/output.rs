//! Where a container's output goes.
//!
//! A FIFO is opened without following a link and held open for reading and writing: as long as the monitor lives, the death
//! of the FIFO's reader does not kill the container with SIGPIPE, and its successor finds the FIFO in order. The container
//! itself gets an end for writing only. When the monitor ends, the reader sees the end of the output.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::Path,
};

use rustix::fs::{CWD, FileType, Gid, Mode, OFlags, Uid, fchown, fstat, open, openat};

use crate::{
    error::{StartError, StartErrorKind},
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
    /// Both ends of a FIFO.
    held: Option<OwnedFd>,
}

impl Outputs {
    pub fn open(output: &Output) -> Result<Self, StartError> {
        Ok(Self { stdout: Stream::open(&output.stdout)?, stderr: Stream::open(&output.stderr)? })
    }

    /// Makes FIFOs the user's own, so that it can open `/dev/stdout` anew. Their other reader is root.
    pub fn give_to(&self, uid: u32, gid: u32) -> io::Result<()> {
        for stream in [&self.stdout, &self.stderr] {
            if stream.held.is_some() && uid != 0 {
                fchown(stream.writer(OFlags::empty())?, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
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
                FileType::Fifo => Some(reopen(&handle, OFlags::RDWR)?),
                FileType::CharacterDevice if stat.st_rdev == rustix::fs::makedev(1, 3) => None,
                _ => return Err(io::Error::new(io::ErrorKind::InvalidInput, "neither a FIFO nor /dev/null")),
            };
            Ok(Self { handle, held })
        };
        open_checked().map_err(|error| failed(error.to_string()))
    }

    /// An end for writing.
    pub fn writer(&self, flags: OFlags) -> io::Result<OwnedFd> {
        reopen(&self.handle, OFlags::WRONLY | flags)
    }
}

/// Opens what a handle stands for.
fn reopen(handle: &OwnedFd, flags: OFlags) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", handle.as_fd().as_raw_fd());
    Ok(open(path, flags | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?)
}
