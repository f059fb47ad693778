//! A log FIFO that may have lost its reader: who reads it, whether it is full, and making room in it.
//!
//! The kernel counts readers but tells nobody, so one looks at the open files of all processes. Only descriptors that are open for
//! reading alone count: monitors and containers hold both ends and never read.

use std::{
    collections::HashSet,
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::{self, ErrorKind},
    os::{
        fd::AsFd,
        unix::{ffi::OsStrExt, fs::MetadataExt},
    },
    path::Path,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    pipe::{SpliceFlags, splice},
    time::Timespec,
};

/// `O_ACCMODE | O_PATH` of open(2); reading alone is none of these.
const NOT_READING_ALONE: u32 = 0o3 | 0o10_000_000;

/// More than a FIFO holds.
const AT_ONCE: usize = 1 << 20;

/// A file, whatever it is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileId {
    /// The device that it is on.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
}

/// A FIFO to look for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fifo {
    /// Which file it is.
    pub id: FileId,
    /// The last part of its path, the same in every mount namespace. Asking for more about a file that is called differently
    /// could wait for a dead network file system.
    pub name: OsString,
}

impl Fifo {
    /// The one that `handle` stands for, which was opened by this path.
    pub fn of(handle: impl AsFd, path: &Path) -> io::Result<Self> {
        let stat = rustix::fs::fstat(handle)?;
        let id = FileId { device: stat.st_dev, inode: stat.st_ino };
        Ok(Self { id, name: path.file_name().map(OsString::from).unwrap_or_default() })
    }
}

/// Whether the next byte would have to wait. Not told by the number of bytes: a page of the FIFO may hold few.
pub fn is_full(fifo: impl AsFd) -> io::Result<bool> {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    Ok(poll(&mut [PollFd::new(&fifo, PollFlags::OUT)], Some(&now))? == 0)
}

/// Drops what is in the FIFO into `null` without looking at it; the number of bytes.
pub fn drop_all(fifo: impl AsFd, null: &File) -> io::Result<u64> {
    match splice(fifo, None, null, None, AT_ONCE, SpliceFlags::NONBLOCK) {
        Ok(count) => Ok(count as u64),
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

/// Those of the FIFOs that another process than this one has open for reading.
pub fn attended(fifos: &[Fifo]) -> io::Result<HashSet<FileId>> {
    let mut found = HashSet::new();
    let own = std::process::id().to_string();
    for process in fs::read_dir("/proc")? {
        let name = process?.file_name();
        let is_process = name.as_bytes().first().is_some_and(u8::is_ascii_digit);
        if !is_process || name == own.as_str() {
            continue;
        }
        match reads(&Path::new("/proc").join(&name), fifos, &mut found) {
            // It has ended meanwhile, or is none of the processes that could have been started to read.
            Err(error) if gone(&error) || error.kind() == ErrorKind::PermissionDenied => {}
            result => result?,
        }
        if found.len() == fifos.len() {
            break;
        }
    }
    Ok(found)
}

fn reads(process: &Path, fifos: &[Fifo], found: &mut HashSet<FileId>) -> io::Result<()> {
    for descriptor in fs::read_dir(process.join("fd"))? {
        let descriptor = descriptor?;
        let Ok(target) = fs::read_link(descriptor.path()) else { continue };
        let last = target.file_name().unwrap_or(OsStr::new(""));
        if !fifos.iter().any(|fifo| fifo.name == last) {
            continue;
        }
        let (Ok(metadata), Ok(info)) =
            (fs::metadata(descriptor.path()), fs::read_to_string(process.join("fdinfo").join(descriptor.file_name())))
        else {
            continue;
        };
        let id = FileId { device: metadata.dev(), inode: metadata.ino() };
        if fifos.iter().any(|fifo| fifo.id == id) && reading_alone(&info) {
            found.insert(id);
        }
    }
    Ok(())
}

/// By the flags in a file of `/proc/<pid>/fdinfo` (proc_pid_fdinfo(5)).
fn reading_alone(info: &str) -> bool {
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & NOT_READING_ALONE == 0)
}

fn gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn flags_of_descriptors() {
        for (flags, expected) in [
            ("0100000", true),
            ("02104000", true),
            ("0100001", false),
            ("0100002", false),
            ("012100000", false),
            ("", false),
            ("9", false),
        ] {
            assert_eq!(reading_alone(&format!("pos:\t0\nflags:\t{flags}\nmnt_id:\t9\n")), expected, "{flags:?}");
        }
        assert!(!reading_alone(""));
    }

    #[test]
    fn a_reader_counts_and_nobody_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(".main.stdout.fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
        let held = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let fifo = Fifo::of(&held, &path).unwrap();
        // As a monitor holds it, and as a task does.
        let open = |read, write| fs::OpenOptions::new().read(read).write(write).open(&path).unwrap();
        let mut holder =
            Command::new("sleep").arg("1000").stdin(open(true, true)).stdout(open(false, true)).spawn().unwrap();
        let holding = attended(std::slice::from_ref(&fifo)).unwrap();
        let mut reader = Command::new("cat").stdin(open(true, false)).stdout(Stdio::null()).spawn().unwrap();
        let reading = attended(std::slice::from_ref(&fifo)).unwrap();
        for child in [&mut holder, &mut reader] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let left = attended(std::slice::from_ref(&fifo)).unwrap();
        drop(held);
        assert!(holding.is_empty(), "holding both ends is not reading");
        assert_eq!(reading, HashSet::from([fifo.id]));
        assert!(left.is_empty(), "a reader that has ended reads no more");
    }
}
