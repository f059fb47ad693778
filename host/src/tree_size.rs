//! The disk space of a directory tree.
//!
//! A container decides how deep its directories are nested and how many there are. So the walk has a limit, its state
//! is on the heap, and no link and no mount is entered. Another process may change the tree meanwhile: the result is
//! that of a moment between.

use std::{
    ffi::{CStr, CString},
    io,
    os::fd::OwnedFd,
    path::Path,
};

use rustix::{
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, openat, openat2, statat},
    io::Errno,
};

/// The unit of `st_blocks` (stat(2)).
const BLOCK: u64 = 512;

/// The most bytes of paths that are kept at once.
const MOST_WAITING: usize = 16 << 20;

/// The size of a tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TreeSize {
    /// Allocated bytes. A file with several names counts once, if all of them are in the tree.
    pub bytes: u64,
    /// Files and directories that were looked at.
    pub files: u64,
    /// The limit was reached, or a directory could not be entered: the tree is larger.
    pub is_partial: bool,
}

/// Directories that were found and not yet read. A container could make the paths of millions of them long.
struct Waiting {
    paths: Vec<CString>,
    bytes: usize,
}

impl Waiting {
    fn pop(&mut self) -> Option<CString> {
        let path = self.paths.pop()?;
        self.bytes = self.bytes.saturating_sub(path.as_bytes().len());
        Some(path)
    }

    /// Returns whether there was room.
    fn push(&mut self, path: Vec<u8>) -> bool {
        let bytes = self.bytes + path.len();
        if bytes > MOST_WAITING {
            return false;
        }
        self.bytes = bytes;
        self.paths.extend(CString::new(path));
        true
    }
}

/// Measures the directories and files below `root`, and `root` itself. Looks at no more than `limit` of them.
pub fn measure(root: &Path, limit: u64) -> io::Result<TreeSize> {
    let root = openat(CWD, root, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let mut size = TreeSize::default();
    size.add(&rustix::fs::fstat(&root)?);
    // Paths relative to the root. One that is longer than PATH_MAX cannot be opened.
    let mut waiting = Waiting { paths: vec![CString::from(c".")], bytes: 0 };
    while let Some(path) = waiting.pop() {
        match open_below(&root, &path) {
            Ok(directory) => size.add_entries(&directory, &path, limit, &mut waiting)?,
            // It was removed, or something else has taken its place.
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(_) => size.is_partial = true,
        }
        if size.files >= limit {
            size.is_partial |= !waiting.paths.is_empty();
            break;
        }
    }
    Ok(size)
}

fn open_below(root: &OwnedFd, path: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat2(root, path, flags, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV)
}

impl TreeSize {
    #[allow(clippy::useless_conversion, reason = "the number of names is an u32 on aarch64")]
    fn add(&mut self, stat: &Stat) {
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let names = if is_directory { 1 } else { u64::from(stat.st_nlink).max(1) };
        let bytes = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(BLOCK);
        self.bytes = self.bytes.saturating_add(bytes / names);
        self.files += 1;
    }

    /// Adds the entries of a directory, and puts the paths of its directories into `waiting`.
    fn add_entries(&mut self, directory: &OwnedFd, path: &CStr, limit: u64, waiting: &mut Waiting) -> io::Result<()> {
        for entry in Dir::read_from(directory)? {
            let entry = match entry {
                Ok(entry) => entry,
                // The directory was removed meanwhile.
                Err(Errno::NOENT) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            let name = entry.file_name();
            if [c".", c".."].contains(&name) {
                continue;
            }
            if self.files >= limit {
                self.is_partial = true;
                return Ok(());
            }
            let Ok(stat) = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            self.add(&stat);
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                let child = [path.to_bytes(), b"/", name.to_bytes()].concat();
                self.is_partial |= !waiting.push(child);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink, process::Command};

    use super::*;

    #[test]
    fn the_size_is_that_of_du_and_links_are_not_followed() {
        let temporary = tempfile::tempdir().unwrap();
        let root = temporary.path().join("tree");
        fs::create_dir_all(root.join("a/b/c")).unwrap();
        fs::write(root.join("a/file"), vec![1; 100_000]).unwrap();
        fs::hard_link(root.join("a/file"), root.join("a/b/again")).unwrap();
        fs::write(root.join("a/b/c/small"), "x").unwrap();
        symlink("/usr", root.join("a/usr")).unwrap();
        let size = measure(&root, 1000).unwrap();
        let du = Command::new("du").arg("-sxB1").arg(&root).output().unwrap();
        let du: u64 = String::from_utf8(du.stdout).unwrap().split_whitespace().next().unwrap().parse().unwrap();
        assert!(size.bytes.abs_diff(du) <= BLOCK && !size.is_partial, "{size:?}, du {du}");
        assert_eq!(size.files, 8);
        assert!(measure(&root, 3).unwrap().is_partial);
        assert_eq!(measure(&root.join("a/usr"), 9).unwrap_err().kind(), io::ErrorKind::NotADirectory);
    }

    #[test]
    fn the_paths_that_wait_take_little_memory() {
        let mut waiting = Waiting { paths: Vec::new(), bytes: 0 };
        let path = || vec![b'd'; 1 << 20];
        let kept = (0..100).filter(|_| waiting.push(path())).count();
        assert_eq!(kept, MOST_WAITING >> 20);
        assert!(waiting.pop().is_some() && waiting.push(path()) && !waiting.push(path()));
    }

    #[test]
    fn a_tree_that_is_deeper_than_any_path_is_measured_in_part() {
        let temporary = tempfile::tempdir().unwrap();
        let name = "d".repeat(250);
        let mut directory = openat(CWD, temporary.path(), OFlags::DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..40 {
            rustix::fs::mkdirat(&directory, name.as_str(), Mode::RWXU).unwrap();
            directory = openat(&directory, name.as_str(), OFlags::DIRECTORY, Mode::empty()).unwrap();
        }
        let size = measure(temporary.path(), 1000).unwrap();
        assert!(size.is_partial && size.files > 10 && size.files < 40, "{size:?}");
        crate::tree::remove(&temporary.path().join(&name)).unwrap();
    }
}
