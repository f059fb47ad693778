//! What many attempts do: open a file, make a node, look at processes; and what the node tells the attempts of itself.

use std::{
    ffi::CString,
    fs,
    io::Read,
    os::{
        fd::AsRawFd,
        unix::{
            fs::{MetadataExt, OpenOptionsExt},
            process::CommandExt,
        },
    },
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use crate::{
    attempt::{Refusal, Tried},
    sys::call,
};

/// A directory of the attempts. The program makes it.
pub(crate) const PLACE: &std::ffi::CStr = c"/tmp/place";

const USER: u32 = 1000;
/// The content of the node's file.
pub const OF_THE_NODE: &str = "of the node\n";

/// A value that the node gives to the attempts: `ESCAPE_FILE`, a file of the node; `ESCAPE_PID`, a process;
/// `ESCAPE_PORT`, a TCP port of all addresses; `ESCAPE_ABSTRACT`, an abstract socket; `ESCAPE_SHM`, shared memory.
pub(crate) fn given(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

/// The same as a number, 0 without one.
pub(crate) fn given_number(name: &str) -> i64 {
    given(name).parse().unwrap_or(0)
}

static LEAKED: OnceLock<usize> = OnceLock::new();

/// Number of descriptors that the program was given beside its standard streams.
pub(crate) fn leaked() -> usize {
    LEAKED.get().copied().unwrap_or_default()
}

/// Counts the program's descriptors. It calls this before it opens any.
pub fn count_descriptors() {
    // The directory that is being read is one of them.
    let count = fs::read_dir("/proc/self/fd").into_iter().flatten().count();
    LEAKED.get_or_init(|| count.saturating_sub(4));
}

/// The path as a C string.
pub(crate) fn c(path: impl AsRef<Path>) -> CString {
    CString::new(path.as_ref().as_os_str().as_encoded_bytes()).unwrap_or_default()
}

/// Opens a file for writing, and writes nothing.
pub(crate) fn writable(path: impl AsRef<Path>) -> Tried {
    Ok(fs::OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?
        .as_raw_fd()
        .into())
}

/// Reads a file that has something to read.
pub(crate) fn readable(path: impl AsRef<Path>) -> Tried {
    let mut file = fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    match file.read(&mut [0; 256])? {
        0 => Err(Refusal::Nothing("empty")),
        length => Ok(length as i64),
    }
}

/// A directory with entries.
pub(crate) fn listed(path: impl AsRef<Path>) -> Tried {
    match fs::read_dir(path)?.count() {
        0 => Err(Refusal::Nothing("empty")),
        count => Ok(count as i64),
    }
}

/// Whether one of the paths succeeds. Otherwise the first refusal of a path that exists.
pub(crate) fn any(paths: impl IntoIterator<Item = PathBuf>, attempt: impl Fn(&Path) -> Tried) -> Tried {
    let mut refused = Refusal::Nothing("not there");
    for path in paths {
        match (attempt(&path), refused) {
            (Ok(done), _) => return Ok(done),
            (Err(Refusal::Errno(libc::ENOENT)), _) => (),
            (Err(refusal), Refusal::Nothing(_)) => refused = refusal,
            _ => (),
        }
    }
    Err(refused)
}

/// The entries of a directory, or `rest` below each of them.
pub(crate) fn each(directory: &str, rest: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let path = |entry: fs::DirEntry| if rest.is_empty() { entry.path() } else { entry.path().join(rest) };
    let mut paths: Vec<PathBuf> = entries.map(path).collect();
    paths.sort();
    paths
}

/// Runs a program as a user without rights. It succeeds if the program has got some.
pub(crate) fn as_user(program: &str, role: &str) -> Tried {
    let status = Command::new(program).arg(role).uid(USER).gid(USER).status()?;
    if status.success() { Ok(0) } else { Err(Refusal::Nothing("no rights")) }
}

/// Makes a device node and opens it for reading.
fn node(kind: u32, major: u32, minor: u32, flags: i32) -> Tried {
    let path = format!("/tmp/node-{kind}-{major}-{minor}");
    call!(libc::SYS_mknodat, libc::AT_FDCWD, &*c(&path), kind | 0o600, libc::makedev(major, minor))?;
    let opened = fs::OpenOptions::new().read(true).custom_flags(flags).open(&path);
    fs::remove_file(&path)?;
    Ok(opened?.as_raw_fd().into())
}

/// Makes a character device and opens it.
pub(crate) fn character(major: u32, minor: u32) -> Tried {
    node(libc::S_IFCHR, major, minor, libc::O_NONBLOCK | libc::O_NOCTTY)
}

/// Makes a block device and opens it.
pub(crate) fn block(major: u32, minor: u32) -> Tried {
    node(libc::S_IFBLK, major, minor, libc::O_NONBLOCK)
}

/// Major and minor number of the node's first disk; of a virtio disk if none is visible.
pub(crate) fn disk() -> (u32, u32) {
    let partitions = fs::read_to_string("/proc/partitions").unwrap_or_default();
    let number = |line: &str| {
        let mut words = line.split_whitespace();
        let major = words.next()?.parse().ok()?;
        let minor = words.next()?.parse().ok()?;
        (major != 7 && major != 1).then_some((major, minor))
    };
    partitions.lines().find_map(number).unwrap_or((254, 0))
}

/// The processes that the container sees.
pub(crate) fn processes() -> Vec<PathBuf> {
    let number = |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes()[0].is_ascii_digit());
    each("/proc", "").into_iter().filter(number).collect()
}

/// The inode of a file: of a namespace, its number.
pub(crate) fn inode(path: impl AsRef<Path>) -> Result<u64, Refusal> {
    Ok(fs::metadata(path)?.ino())
}

/// Reads the node's file below another root.
pub(crate) fn nodes_file_below(root: &str) -> Tried {
    is_the_nodes(&format!("{root}{}", given("ESCAPE_FILE")))
}

/// Reads a file that has the content of the node's.
pub(crate) fn is_the_nodes(path: &str) -> Tried {
    if fs::read(path)? == OF_THE_NODE.as_bytes() { Ok(0) } else { Err(Refusal::Nothing("another file")) }
}
