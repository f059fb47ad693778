//! One log FIFO: its readers, whether it is full, and discarding its content.
//!
//! The kernel counts the readers of a FIFO but does not tell the count. So readers are found by a look at the open
//! files of all processes. Only descriptors that are open for reading alone count: monitors and containers hold both
//! ends and never read.

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
    io::{Errno, ioctl_fionread},
    pipe::{SpliceFlags, splice},
    time::Timespec,
};

/// Bytes to discard at once: more than a FIFO holds.
const AT_ONCE: usize = 1 << 20;

/// The identity of a file, independent of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileId {
    /// The device that it is on.
    pub device: u64,
    /// Its number on that device.
    pub inode: u64,
}

/// A FIFO to look for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fifo {
    /// Which file it is.
    pub id: FileId,
    /// The last part of its path, the same in every mount namespace. Files with another name are not examined: that
    /// could wait for a dead network file system.
    pub name: OsString,
}

impl Fifo {
    /// The FIFO that `handle` refers to. It was opened by `path`.
    pub fn of(handle: impl AsFd, path: &Path) -> io::Result<Self> {
        let stat = rustix::fs::fstat(handle)?;
        let id = FileId { device: stat.st_dev, inode: stat.st_ino };
        Ok(Self { id, name: path.file_name().map(OsString::from).unwrap_or_default() })
    }
}

/// Whether the next byte would have to wait. The number of bytes does not tell: a page of the FIFO may hold few bytes.
pub(crate) fn is_full(fifo: impl AsFd) -> io::Result<bool> {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    Ok(poll(&mut [PollFd::new(&fifo, PollFlags::OUT)], Some(&now))? == 0)
}

/// Whether no process has the FIFO open for reading. `writer` is open for writing alone.
pub(super) fn has_no_reader(writer: impl AsFd) -> io::Result<bool> {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut events = [PollFd::new(&writer, PollFlags::empty())];
    poll(&mut events, Some(&now))?;
    Ok(events[0].revents().contains(PollFlags::ERR))
}

/// The number of bytes in the FIFO.
pub fn waiting_bytes(fifo: impl AsFd) -> io::Result<u64> {
    Ok(ioctl_fionread(fifo)?)
}

/// Moves the content of the FIFO to `null`, which is `/dev/null`; the number of bytes.
pub(crate) fn discard(fifo: impl AsFd, null: &File) -> io::Result<u64> {
    match splice(fifo, None, null, None, AT_ONCE, SpliceFlags::NONBLOCK) {
        Ok(count) => Ok(count as u64),
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

/// The FIFOs that another process has open for reading. The calling process does not count.
pub fn readers_of(fifos: &[Fifo]) -> io::Result<HashSet<FileId>> {
    let mut found = HashSet::new();
    let own = std::process::id().to_string();
    for process in fs::read_dir("/proc")? {
        let name = process?.file_name();
        let is_process = name.as_bytes().first().is_some_and(u8::is_ascii_digit);
        if !is_process || name == own.as_str() {
            continue;
        }
        match find_read(&Path::new("/proc").join(&name), fifos, &mut found) {
            // The process has ended meanwhile, or it is not a process that could have been started to read.
            Err(error) if gone(&error) || error.kind() == ErrorKind::PermissionDenied => {}
            result => result?,
        }
        if found.len() == fifos.len() {
            break;
        }
    }
    Ok(found)
}

fn find_read(process: &Path, fifos: &[Fifo], found: &mut HashSet<FileId>) -> io::Result<()> {
    for descriptor in fs::read_dir(process.join("fd"))? {
        let descriptor = descriptor?;
        let Ok(target) = fs::read_link(descriptor.path()) else { continue };
        let last = target.file_name().unwrap_or(OsStr::new(""));
        if !fifos.iter().any(|fifo| fifo.name == last) {
            continue;
        }
        // Monitors have both ends of their FIFOs open. The link tells that without a look at the file.
        if !fs::symlink_metadata(descriptor.path()).is_ok_and(|link| is_read_only(link.mode())) {
            continue;
        }
        let Ok(metadata) = fs::metadata(descriptor.path()) else { continue };
        let id = FileId { device: metadata.dev(), inode: metadata.ino() };
        if fifos.iter().any(|fifo| fifo.id == id) {
            found.insert(id);
        }
    }
    Ok(())
}

/// Whether a descriptor is open for reading alone, by the mode of its link in `/proc/<pid>/fd`: the owner's bits are
/// those for which it is open, and one that is open with `O_PATH` has none (proc_pid_fd(5)).
fn is_read_only(mode: u32) -> bool {
    mode & (libc::S_IRUSR | libc::S_IWUSR) == libc::S_IRUSR
}

fn gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
}

#[cfg(test)]
mod tests {
    use std::{
        os::{fd::AsRawFd, unix::fs::PermissionsExt},
        process::{Command, Stdio},
    };

    use super::*;

    #[test]
    fn the_link_of_a_descriptor_tells_a_reader_from_the_others() {
        use rustix::fs::{CWD, Mode, OFlags, openat};
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fifo");
        rustix::fs::mkfifoat(CWD, &path, Mode::from_raw_mode(0o600)).unwrap();
        // The mode of the file itself does not count.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
        for (flags, expected) in [
            (OFlags::RDWR, false),
            (OFlags::RDONLY | OFlags::NONBLOCK, true),
            (OFlags::WRONLY | OFlags::NONBLOCK, false),
            (OFlags::PATH, false),
        ] {
            let (held, opened) = (
                openat(CWD, &path, OFlags::RDWR, Mode::empty()).unwrap(),
                openat(CWD, &path, flags, Mode::empty()).unwrap(),
            );
            let link = fs::symlink_metadata(format!("/proc/self/fd/{}", opened.as_raw_fd())).unwrap();
            assert_eq!(is_read_only(link.mode()), expected, "{flags:?}");
            drop(held);
        }
    }

    #[test]
    fn only_a_descriptor_that_is_open_for_reading_alone_counts_as_a_reader() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(".main.stdout.fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
        let held = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let fifo = Fifo::of(&held, &path).unwrap();
        // The holder's descriptors are those of a monitor and of a task.
        let open = |read, write| fs::OpenOptions::new().read(read).write(write).open(&path).unwrap();
        let mut holder =
            Command::new("sleep").arg("1000").stdin(open(true, true)).stdout(open(false, true)).spawn().unwrap();
        let holding = readers_of(std::slice::from_ref(&fifo)).unwrap();
        let mut reader = Command::new("cat").stdin(open(true, false)).stdout(Stdio::null()).spawn().unwrap();
        let reading = readers_of(std::slice::from_ref(&fifo)).unwrap();
        for child in [&mut holder, &mut reader] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let left = readers_of(std::slice::from_ref(&fifo)).unwrap();
        drop(held);
        assert!(holding.is_empty(), "holding both ends is not reading");
        assert_eq!(reading, HashSet::from([fifo.id]));
        assert!(left.is_empty(), "a reader that has ended does not count");
    }
}
