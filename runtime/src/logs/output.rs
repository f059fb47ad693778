//! Opening a container's logs.
//!
//! A log is a FIFO or `/dev/null`. A FIFO is opened without following a link, for reading and writing, by the monitor
//! and for the container. As long as either lives, the death of the FIFO's reader does not kill the container with
//! SIGPIPE, and the next reader finds the FIFO in order. When both have ended, the reader sees the end of the output.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, FileType, Gid, Mode, OFlags, Uid, fchown, fstat, open, openat};

use super::{
    fifo::{Fifo, waiting_bytes},
    stream::OutputStream,
    writers::LogWriters,
};
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
    pub path: PathBuf,
    /// An O_PATH handle on the checked file.
    handle: OwnedFd,
    /// If the log is a FIFO: both ends of it.
    pub held: Option<HeldFifo>,
}

/// A FIFO that is held open.
#[derive(Debug)]
pub(crate) struct HeldFifo {
    pub fifo: Fifo,
    /// Open for reading and writing, in non-blocking mode.
    pub both: OwnedFd,
    /// Open for writing alone, in non-blocking mode, after [`Outputs::hold_writers`].
    pub writer: Option<OwnedFd>,
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

    /// Opens the FIFOs for writing alone, too. A process that gives up its rights must do so before: afterwards it
    /// cannot open FIFOs of other users.
    pub fn hold_writers(&mut self) -> io::Result<()> {
        for log in [&mut self.stdout, &mut self.stderr] {
            if let Some(held) = &mut log.held {
                held.writer = Some(open_handle(&log.handle, OFlags::WRONLY | OFlags::NONBLOCK)?);
            }
        }
        Ok(())
    }

    /// Handles on both files.
    pub fn handles(&self) -> [BorrowedFd<'_>; 2] {
        [self.stdout.handle(), self.stderr.handle()]
    }

    /// Closes the FIFOs. Returns the number of bytes in each FIFO that has no reader, as [`LogWriters::close`] does.
    pub fn close(self) -> io::Result<Vec<(OutputStream, u64)>> {
        let mut writers = LogWriters::default();
        for (stream, log) in [(OutputStream::Stdout, self.stdout), (OutputStream::Stderr, self.stderr)] {
            let Some(HeldFifo { fifo, both, writer }) = log.held else { continue };
            if waiting_bytes(&both)? > 0 {
                let opened = || open_handle(&log.handle, OFlags::WRONLY | OFlags::NONBLOCK);
                writers.add(stream, fifo.id, || writer.map_or_else(opened, Ok))?;
            }
        }
        // From here on this process reads none of them, so the kernel tells whether another one does.
        writers.close()
    }

    /// Makes the user the owner of the FIFOs, so that its processes can open `/dev/stdout` again. Their reader is root.
    /// An earlier start of the container may have given them to another id.
    pub fn give_to(&self, uid: u32, gid: u32) -> io::Result<()> {
        for stream in [&self.stdout, &self.stderr] {
            let Some(HeldFifo { both, .. }) = &stream.held else { continue };
            let stat = fstat(both)?;
            if (stat.st_uid, stat.st_gid) != (uid, gid) && (stat.st_uid, uid) != (0, 0) {
                fchown(both, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
            }
        }
        Ok(())
    }

    /// The FIFOs.
    pub fn fifos(&self) -> impl Iterator<Item = &OwnedFd> {
        [&self.stdout, &self.stderr].into_iter().filter_map(|stream| stream.held.as_ref().map(|held| &held.both))
    }
}

impl LogWriters {
    /// Opens the FIFOs of a container whose monitor was killed. Logs that are no FIFOs are left out.
    pub(crate) fn open(output: &Output) -> io::Result<Self> {
        let mut writers = Self::default();
        for (stream, path) in [(OutputStream::Stdout, &output.stdout), (OutputStream::Stderr, &output.stderr)] {
            let handle = openat(CWD, path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
            if FileType::from_raw_mode(fstat(&handle)?.st_mode) == FileType::Fifo {
                let id = Fifo::of(&handle, path)?.id;
                writers.add(stream, id, || open_handle(&handle, OFlags::WRONLY | OFlags::NONBLOCK))?;
            }
        }
        Ok(writers)
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
                    let both = open_handle(&handle, OFlags::RDWR | OFlags::NONBLOCK)?;
                    Some(HeldFifo { fifo: Fifo::of(&handle, path)?, both, writer: None })
                }
                FileType::CharacterDevice if stat.st_rdev == rustix::fs::makedev(1, 3) => None,
                _ => return Err(io::Error::new(io::ErrorKind::InvalidInput, "neither a FIFO nor /dev/null")),
            };
            Ok(Self { path: path.to_owned(), handle, held })
        };
        open_checked().map_err(|error| failed(error.to_string()))
    }

    /// An `O_PATH` handle on the file.
    pub fn handle(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

/// Opens the file that a handle refers to.
pub(crate) fn open_handle(handle: impl AsFd, flags: OFlags) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", handle.as_fd().as_raw_fd());
    Ok(open(path, flags | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use std::{
        env, fs,
        io::{Read, Write},
        process::Command,
    };

    use super::*;

    /// Set in the process that has no other test.
    const ALONE: &str = "OCI_RS_TEST_ALONE";

    /// Opens two FIFOs, writes this into the first one, and closes them while `other` is held.
    fn lost(same: bool, writers_first: bool, other: Option<(bool, bool)>) -> Vec<(OutputStream, u64)> {
        let directory = tempfile::tempdir().expect("a directory");
        let paths = ["stdout", if same { "stdout" } else { "stderr" }].map(|name| directory.path().join(name));
        for path in paths.iter().skip(usize::from(same)) {
            rustix::fs::mkfifoat(CWD, path, Mode::from_raw_mode(0o600)).expect("a FIFO");
        }
        let paths_of_both = Output { stdout: paths[0].clone(), stderr: paths[1].clone() };
        let mut outputs = Outputs::open(&paths_of_both).expect("opened");
        if writers_first {
            outputs.hold_writers().expect("opened");
        }
        let mut task =
            fs::File::from(open_handle(outputs.stdout.handle(), OFlags::RDWR).expect("as the container opens it"));
        task.write_all(b"unread").expect("written");
        drop(task);
        let held =
            other.map(|(read, write)| fs::File::options().read(read).write(write).open(&paths[0]).expect("held"));
        let lost = outputs.close().expect("closed");
        if let Some((mut held, (true, _))) = held.zip(other) {
            let mut text = [0; 6];
            held.read_exact(&mut text).expect("nothing was taken away");
        }
        lost
    }

    #[test]
    fn a_log_belongs_to_the_user_of_the_last_start() {
        use std::os::unix::fs::MetadataExt;
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let log = directory.path().join("log");
        rustix::fs::mkfifoat(CWD, &log, Mode::from_raw_mode(0o600)).expect("a FIFO");
        let outputs = Outputs::open(&Output { stdout: log.clone(), stderr: log.clone() }).expect("opened");
        for owner in [(1000, 50), (1 << 30, 1 << 30), (0, 0)] {
            outputs.give_to(owner.0, owner.1).expect("given");
            let metadata = fs::metadata(&log).expect("the FIFO");
            assert_eq!((metadata.uid(), metadata.gid()), owner);
        }
    }

    #[test]
    fn content_is_lost_without_a_reader() {
        if env::var_os(ALONE).is_none() {
            // Here a process that another test starts holds our FIFOs open until its execve, like a reader.
            let mut alone = Command::new(env::current_exe().expect("this program"));
            alone.args(["--exact", "logs::output::tests::content_is_lost_without_a_reader"]).env(ALONE, "1");
            let ended = alone.output().expect("this program, again");
            assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
            return;
        }
        for (same, writers_first) in [(false, false), (true, false), (false, true), (true, true)] {
            let lost = |other| lost(same, writers_first, other);
            assert_eq!(lost(None), [(OutputStream::Stdout, 6)]);
            assert_eq!(lost(Some((false, true))), [(OutputStream::Stdout, 6)], "a writer does not read");
            assert!(lost(Some((true, false))).is_empty(), "its reader has not read it yet");
            assert!(lost(Some((true, true))).is_empty(), "its holder counts it");
        }
    }
}
