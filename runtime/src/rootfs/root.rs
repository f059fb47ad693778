//! Paths inside a container's root. They are resolved as the container would resolve them, and none leads out of the
//! root.
//!
//! No process of the container runs while files are created here, so a checked path stays valid.

use std::{
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Component, Path, PathBuf},
};

use host::resolve::open_below;
use rustix::{
    fs::{
        AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, fstat, mkdirat, open, openat, openat2, readlinkat, statat,
    },
    io::Errno,
};

use crate::{id_map::as_root_of, plan::IdRange, process::ProcessRef};

/// The root directory of a container's file system.
#[derive(Debug)]
pub(crate) struct Root {
    directory: OwnedFd,
    /// The ids with which files are made.
    owner: Option<IdRange>,
}

/// The most symbolic links that are followed. A longer chain counts as a loop.
const MAX_SYMLINKS: u32 = 40;

impl Root {
    /// Opens the root at a path of the host. New files in it belong to the root of the container with the ids `owner`,
    /// or to the node's.
    pub fn open(path: &Path, owner: Option<IdRange>) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { directory: openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS)?, owner })
    }

    /// Opens the root of a running process. The container can change its files at any time, so only open descriptors
    /// are reliable.
    pub fn of_process(process: &ProcessRef) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = open(format!("/proc/{}/root", process.pid), flags, Mode::empty())?;
        // If the process still runs, the pid was still its own when the root was opened.
        if process.ended() { Err(io::ErrorKind::NotFound.into()) } else { Ok(Self { directory: root, owner: None }) }
    }

    /// Opens a path as the container would resolve it.
    pub fn resolve(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let path = if path.as_os_str().is_empty() { Path::new("/") } else { path };
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        open_below(&self.directory, path, flags, resolve)
    }

    /// Reads a regular file. `None` if it does not exist; an error if it is larger than `limit` bytes.
    pub fn read(&self, path: &str, limit: u64) -> io::Result<Option<String>> {
        let fd = match self.resolve(Path::new(path), OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY) {
            Ok(fd) => fd,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let stat = fstat(&fd)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a regular file"));
        }
        if stat.st_size as u64 > limit {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("larger than {limit} bytes")));
        }
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(std::fs::File::from(fd), limit), &mut bytes)?;
        Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// Creates the directory `name` in the root, unless it exists. A symbolic link or another file of that name is an
    /// error.
    pub fn ensure_real_directory(&self, name: &str) -> io::Result<()> {
        // Most roots have it, and a change of ids takes more than a look.
        let stat = match statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(self.make_directory(&self.directory, Path::new(name))??),
            found => found?,
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => Ok(()),
            kind => Err(io::Error::new(
                io::ErrorKind::NotADirectory,
                format!("the image's /{name} is not a directory but a {kind:?}; a container needs a directory there"),
            )),
        }
    }

    /// The path without symbolic links, from the root, to which an existing path leads.
    pub fn real_path(&self, path: &Path) -> io::Result<PathBuf> {
        self.path_of(&self.resolve(path, OFlags::PATH)?)
    }

    /// The path of an open file without symbolic links, from the root.
    pub fn path_of(&self, file: &OwnedFd) -> io::Result<PathBuf> {
        let by_descriptor = |fd: &OwnedFd| std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        let (root, file) = (by_descriptor(&self.directory)?, by_descriptor(file)?);
        let below = file.strip_prefix(&root).map_err(|_| io::Error::other("it leads out of the root"))?;
        Ok(Path::new("/").join(below))
    }

    /// Creates a directory and its parents. Symbolic links are followed, and the targets of dangling ones are created.
    pub fn create_directories(&self, path: &Path) -> io::Result<OwnedFd> {
        self.create_directories_from(path, 0)
    }

    /// Creates an empty file and its parent directories, unless a file exists at the path.
    pub fn create_file(&self, path: &Path) -> io::Result<()> {
        self.create_file_from(path, 0)
    }

    /// `links` is the number of symbolic links that were followed before.
    fn create_directories_from(&self, path: &Path, links: u32) -> io::Result<OwnedFd> {
        if links > MAX_SYMLINKS {
            return Err(Errno::LOOP.into());
        }
        match self.resolve(path, OFlags::PATH | OFlags::DIRECTORY) {
            Err(Errno::NOENT) => {}
            other => return Ok(other?),
        }
        let (parent, name) = split(path)?;
        let directory = self.create_directories_from(&parent, links)?;
        match self.make_directory(&directory, &name)? {
            Ok(()) => Ok(self.resolve(path, OFlags::PATH | OFlags::DIRECTORY)?),
            // A dangling symbolic link: the name exists, but resolving it failed.
            Err(Errno::EXIST) => {
                self.create_directories_from(&self.link_target(&directory, &parent, &name)?, links + 1)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn create_file_from(&self, path: &Path, links: u32) -> io::Result<()> {
        if links > MAX_SYMLINKS {
            return Err(Errno::LOOP.into());
        }
        match self.resolve(path, OFlags::PATH) {
            Err(Errno::NOENT) => {}
            other => return Ok(other.map(drop)?),
        }
        let (parent, name) = split(path)?;
        let directory = self.create_directories_from(&parent, links)?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = || openat(&directory, &name, flags, Mode::from_raw_mode(0o644));
        match as_root_of(self.owner, made)? {
            Ok(_) => Ok(()),
            Err(Errno::EXIST) => self.create_file_from(&self.link_target(&directory, &parent, &name)?, links + 1),
            Err(error) => Err(error.into()),
        }
    }

    fn make_directory(&self, parent: &OwnedFd, name: &Path) -> io::Result<Result<(), Errno>> {
        as_root_of(self.owner, || mkdirat(parent, name, Mode::from_raw_mode(0o755)))
    }

    /// The target of a symbolic link, as a path from the root. The kernel resolves `..` in it, within the root.
    fn link_target(&self, directory: &OwnedFd, parent: &Path, name: &Path) -> io::Result<PathBuf> {
        let target = readlinkat(directory, name, Vec::new())?;
        let target = Path::new(std::ffi::OsStr::from_bytes(target.to_bytes()));
        Ok(parent.join(target))
    }
}

/// The parent and the last name of a path that does not end in `..`.
fn split(path: &Path) -> io::Result<(PathBuf, PathBuf)> {
    match path.components().next_back() {
        Some(Component::Normal(name)) => {
            Ok((path.parent().unwrap_or_else(|| Path::new("/")).to_owned(), PathBuf::from(name)))
        }
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{} cannot be made", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    fn root() -> (tempfile::TempDir, Root) {
        let directory = tempfile::tempdir().expect("a directory");
        let root = Root::open(directory.path(), None).expect("a root");
        (directory, root)
    }

    #[test]
    fn directories_and_files_are_created_through_dangling_links_and_never_outside() {
        let (directory, root) = root();
        let outside = tempfile::tempdir().expect("a directory");
        symlink("/run", directory.path().join("var-run")).expect("a link");
        symlink("../../../../escape", directory.path().join("up")).expect("a link");
        symlink(outside.path(), directory.path().join("abs")).expect("a link");
        symlink("loop", directory.path().join("loop")).expect("a link");
        root.create_directories(Path::new("/var-run/app/deep")).expect("made");
        assert!(directory.path().join("run/app/deep").is_dir());
        root.create_directories(Path::new("/up/x")).expect("made");
        assert!(directory.path().join("escape/x").is_dir());
        root.create_file(Path::new("/abs/file")).expect("made");
        assert!(!outside.path().join("file").exists());
        assert!(directory.path().join(outside.path().strip_prefix("/").expect("absolute")).join("file").is_file());
        assert!(root.create_directories(Path::new("/loop/x")).is_err());
        let real = |path: &str| root.real_path(Path::new(path)).expect("there");
        assert_eq!((real("/var-run/app"), real("/up"), real("/")), ("/run/app".into(), "/escape".into(), "/".into()));
        assert!(root.real_path(Path::new("/none")).is_err());
        root.create_file(Path::new("/var-run/app/resolv.conf")).expect("made");
        root.create_file(Path::new("/var-run/app/resolv.conf")).expect("already there");
        assert!(directory.path().join("run/app/resolv.conf").is_file());
    }

    #[test]
    fn only_regular_files_of_limited_size_inside_the_root_are_read() {
        let (directory, root) = root();
        fs::create_dir(directory.path().join("etc")).expect("made");
        fs::write(directory.path().join("etc/group"), "x".repeat(100)).expect("written");
        symlink("/etc/shadow", directory.path().join("etc/passwd")).expect("a link");
        assert_eq!(root.read("/etc/passwd", 1000).expect("read"), None, "the host's file is not seen");
        assert_eq!(root.read("/etc/group", 1000).expect("read").map(|text| text.len()), Some(100));
        assert!(root.read("/etc/group", 99).is_err());
        assert!(root.read("/etc", 99).is_err());
        assert_eq!(root.read("/none/at/all", 99).expect("read"), None);
    }

    #[test]
    fn a_symbolic_link_is_not_a_real_directory() {
        let (directory, root) = root();
        symlink("/tmp", directory.path().join("dev")).expect("a link");
        assert!(root.ensure_real_directory("dev").is_err());
        root.ensure_real_directory("proc").expect("made");
        root.ensure_real_directory("proc").expect("still there");
    }
}
