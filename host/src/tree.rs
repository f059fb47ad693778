//! Removing a directory tree of any depth.
//!
//! A container decides how deep its directories are nested. `std::fs::remove_dir_all` needs a stack frame and a
//! descriptor for each level, so a deep tree would end the process or exceed its limit of descriptors. Here the levels
//! are on the heap, at most three descriptors are open, and the way up leads through `..`.

use std::{
    ffi::CString,
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, fstat, openat, statat, unlinkat},
    io::Errno,
    path::Arg,
};

/// A directory on the way from the root of the tree to the open one.
struct Level {
    /// Its name in the directory above.
    name: CString,
    /// Device and inode.
    id: (u64, u64),
    /// Directories in it that still have content.
    full: Vec<CString>,
}

/// Removes a directory and everything in it. Symbolic links are removed, never followed. Several processes may remove
/// the same tree at the same time.
///
/// # Errors
///
/// [`io::ErrorKind::NotFound`] if there is no directory at `path`, [`io::ErrorKind::NotADirectory`] if it is a file or
/// a link, and each error of the kernel that keeps an entry from being removed.
pub fn remove(path: &Path) -> io::Result<()> {
    loop {
        let root = open(CWD, path)?;
        match empty(root) {
            Ok(()) => return Ok(unlinkat(CWD, path, AtFlags::REMOVEDIR)?),
            // Another process has removed the directory that was being emptied.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
}

/// Removes everything in a directory.
fn empty(root: OwnedFd) -> io::Result<()> {
    let mut levels = vec![Level { name: CString::default(), id: id(&root)?, full: remove_entries(&root)? }];
    let mut current = root;
    while let Some(level) = levels.last_mut() {
        if let Some(name) = level.full.pop() {
            match open(&current, name.as_c_str()) {
                Ok(child) => {
                    levels.push(Level { name, id: id(&child)?, full: remove_entries(&child)? });
                    current = child;
                }
                Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        } else if let (Some(done), Some(above)) = (levels.pop(), levels.last()) {
            current = open(&current, c"..")?;
            if id(&current)? != above.id {
                return Err(io::Error::other("a directory was moved while its tree was being removed"));
            }
            ignore_missing(unlinkat(&current, done.name.as_c_str(), AtFlags::REMOVEDIR))?;
        }
    }
    Ok(())
}

/// Removes the files and the empty directories in a directory; the names of the other directories.
fn remove_entries(directory: &OwnedFd) -> io::Result<Vec<CString>> {
    let mut full = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if [c".", c".."].contains(&name) {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(error.into()),
            },
            known => known,
        };
        let is_directory = kind == FileType::Directory;
        let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        match unlinkat(directory, name, flags) {
            Err(Errno::NOTEMPTY | Errno::EXIST) if is_directory => full.push(name.to_owned()),
            result => ignore_missing(result)?,
        }
    }
    Ok(full)
}

fn open(directory: impl AsFd, path: impl Arg) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(directory, path, flags, Mode::empty())
}

fn id(directory: &OwnedFd) -> io::Result<(u64, u64)> {
    let stat = fstat(directory)?;
    Ok((stat.st_dev, stat.st_ino))
}

fn ignore_missing(result: Result<(), Errno>) -> Result<(), Errno> {
    if result == Err(Errno::NOENT) { Ok(()) } else { result }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink, process::Command, thread};

    use rustix::fs::mkdirat;

    use super::*;

    /// The variable with which the test below runs itself again, with few descriptors.
    const TREE: &str = "OCI_RS_TEST_TREE";

    /// Nests directories in `path`, each with a file and an empty directory.
    fn nest(path: &Path, depth: u32) {
        fs::create_dir(path).expect("a directory");
        let mut current = open(CWD, path).expect("opened");
        for level in 0..depth {
            for name in [c"next", c"empty"] {
                mkdirat(&current, name, Mode::RWXU).expect("a directory");
            }
            if level % 100 == 0 {
                rustix::fs::symlinkat("/", &current, c"link").expect("a link");
            }
            current = open(&current, c"next").expect("opened");
        }
    }

    #[test]
    fn a_deep_tree_needs_few_descriptors_and_little_stack() {
        if let Some(tree) = std::env::var_os(TREE) {
            let remove = move || remove(Path::new(&tree));
            let thread = thread::Builder::new().stack_size(64 << 10).spawn(remove).expect("a thread");
            thread.join().expect("no overflow").expect("removed");
            return;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let tree = directory.path().join("tree");
        nest(&tree, 1200);
        let test = "tree::tests::a_deep_tree_needs_few_descriptors_and_little_stack";
        let status = Command::new("/bin/sh")
            .args(["-c", "ulimit -n 32; exec \"$0\" --exact \"$1\" --test-threads 1"])
            .arg(std::env::current_exe().expect("this program"))
            .arg(test)
            .env(TREE, &tree)
            .output()
            .expect("a shell");
        assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stderr));
        assert!(!tree.exists());
    }

    #[test]
    fn links_are_removed_and_not_followed() {
        let directory = tempfile::tempdir().expect("a directory");
        let (tree, kept) = (directory.path().join("tree"), directory.path().join("kept"));
        for path in [tree.join("a/b"), tree.join("c"), kept.clone()] {
            fs::create_dir_all(path).expect("a directory");
        }
        fs::write(kept.join("file"), "").expect("written");
        fs::write(tree.join("a/b/file"), "").expect("written");
        symlink(&kept, tree.join("a/link")).expect("a link");
        symlink("nowhere", tree.join("c/dangling")).expect("a link");
        remove(&tree).expect("removed");
        assert!(!tree.exists() && kept.join("file").exists());
        symlink(&kept, &tree).expect("a link");
        assert_eq!(remove(&tree).expect_err("a link").kind(), io::ErrorKind::NotADirectory);
        assert_eq!(remove(&kept.join("file")).expect_err("a file").kind(), io::ErrorKind::NotADirectory);
        assert_eq!(remove(&kept.join("none")).expect_err("missing").kind(), io::ErrorKind::NotFound);
        assert!(kept.join("file").exists());
    }

    #[test]
    fn several_processes_remove_one_tree() {
        let directory = tempfile::tempdir().expect("a directory");
        let tree = directory.path().join("tree");
        for round in 0..20 {
            fs::create_dir(&tree).expect("a directory");
            for branch in 0..4 {
                nest(&tree.join(branch.to_string()), 20 + round);
            }
            thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| match remove(&tree) {
                        Err(error) if error.kind() != io::ErrorKind::NotFound => panic!("{error}"),
                        _ => {}
                    });
                }
            });
            assert!(!tree.exists());
        }
    }
}
