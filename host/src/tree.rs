//! Walking through a directory tree of any depth, and removing it.
//!
//! A container decides how deep its directories are nested and how long their names are. `std::fs::remove_dir_all`
//! needs a stack frame and a descriptor for each level, so a deep tree would end the process or exceed its limit of
//! descriptors. Here the levels are on the heap, and each name is looked up in its own directory.
//!
//! The last directories on the way to the current one stay open. On the way up, a directory that is closed is opened
//! again from the nearest open one above, by the names on the way. The directories at a half of that way, at three
//! quarters, and so on, stay open. So the number of descriptors grows with the logarithm of the depth, and n nested
//! directories take n log n steps. The way through `..` would be shorter. But on a bind mount, the kernel looks at all
//! directories above at each such step.
//!
//! Another process may change the tree meanwhile. No link and no mount is entered, so nothing outside the tree is
//! visited or removed. What cannot be removed is reported, and everything else is removed.

use std::{
    ffi::{CStr, CString, OsStr},
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use rustix::{
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2, statat, unlinkat},
    io::Errno,
    path::Arg,
};

/// How often a tree is walked through while other processes change it.
const PASSES: usize = 64;

/// Device and inode.
type Id = (u64, u64);

/// This many directories above the current one stay open.
const WINDOW: usize = 8;

/// What is done with the entries of a tree.
pub trait Visitor {
    /// Sees an entry of a directory. If it is a directory, the result tells whether it is entered.
    fn see(&mut self, directory: &OwnedFd, name: &CStr, kind: FileType) -> bool;

    /// Sees a directory that was entered, after everything in it.
    fn leave(&mut self, above: &OwnedFd, name: &CStr);

    /// A directory could not be entered.
    fn refused(&mut self, name: &CStr, error: Errno);
}

/// A directory on the way from the root of the tree to the current one.
struct Level {
    /// Its name in the directory above.
    name: CString,
    id: Id,
    /// Directories in it that are still to be entered.
    full: Vec<CString>,
    /// Its descriptor, while it is open. The root and the current directory always are.
    open: Option<OwnedFd>,
}

/// Removes a directory and everything in it. Symbolic links are removed, never followed. Several processes may remove
/// the same tree at the same time. An entry that cannot be removed does not keep the other entries.
///
/// # Errors
///
/// [`io::ErrorKind::NotFound`] if there is no directory at `path`, [`io::ErrorKind::NotADirectory`] if it is a file or
/// a link, and otherwise the kernel's first reason for keeping an entry, with the entry's name. A mount in the tree is
/// such a reason.
pub fn remove(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let parent = openat(CWD, parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    for _ in 0..PASSES {
        let root = open_child(&parent, name).map_err(|error| match error {
            Errno::LOOP => io::ErrorKind::NotADirectory.into(),
            error => reason(name, error),
        })?;
        let kept = match empty(root) {
            // Another process has removed the directory that was being emptied.
            Err(Errno::NOENT) => continue,
            kept => kept?,
        };
        match unlinkat(&parent, name, AtFlags::REMOVEDIR) {
            Ok(()) => return Ok(()),
            Err(error) if !changed(error) => return Err(reason(name, error)),
            // Without a reason, another process has added or moved something.
            Err(_) => kept.map_or(Ok(()), Err)?,
        }
    }
    Err(io::Error::other("another process keeps changing it"))
}

/// Removes everything in a directory that can be removed. The result is the reason why the first other entry stays.
fn empty(root: OwnedFd) -> Result<Option<io::Error>, Errno> {
    let mut remover = Remover { kept: None };
    walk(root, &mut remover)?;
    Ok(remover.kept)
}

/// Walks through everything in a directory. False if another process moved a directory meanwhile: then a part may be
/// left out.
///
/// # Errors
///
/// The directory itself, or one on the way, cannot be read.
pub fn walk(root: OwnedFd, visitor: &mut impl Visitor) -> Result<bool, Errno> {
    let full = see_entries(&root, visitor)?;
    let mut levels = vec![Level { name: CString::default(), id: id(&root)?, full, open: Some(root) }];
    while let Some(Level { full, open: Some(current), .. }) = levels.last_mut() {
        if let Some(name) = full.pop() {
            match enter(current, name, visitor) {
                Ok(child) => levels.push(child),
                // It was removed, or a file or a link has taken its place.
                Err((_, Errno::NOENT | Errno::NOTDIR | Errno::LOOP)) => {}
                Err((name, error)) => visitor.refused(&name, error),
            }
            if let Some(above) = levels.len().checked_sub(WINDOW + 1).filter(|above| *above > 0) {
                levels[above].open = None;
            }
        } else if let Some(done) = levels.pop() {
            if !reopen_last(&mut levels)? {
                // A directory was moved. The next pass begins at the root again.
                return Ok(false);
            }
            if let Some(Level { open: Some(above), .. }) = levels.last() {
                visitor.leave(above, &done.name);
            }
        }
    }
    Ok(true)
}

/// Removes what it sees.
struct Remover {
    /// The reason why the first entry stays.
    kept: Option<io::Error>,
}

impl Visitor for Remover {
    fn see(&mut self, directory: &OwnedFd, name: &CStr, kind: FileType) -> bool {
        let flags = if kind == FileType::Directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        remove_entry(directory, name, flags, &mut self.kept)
    }

    fn leave(&mut self, above: &OwnedFd, name: &CStr) {
        remove_entry(above, name, AtFlags::REMOVEDIR, &mut self.kept);
    }

    fn refused(&mut self, name: &CStr, error: Errno) {
        keep(&mut self.kept, name, error);
    }
}

/// Opens a directory and shows its entries to the visitor. An error has the directory's name.
fn enter(parent: &OwnedFd, name: CString, visitor: &mut impl Visitor) -> Result<Level, (CString, Errno)> {
    let mut read = || -> Result<_, Errno> {
        let child = open_child(parent, name.as_c_str())?;
        let full = see_entries(&child, visitor)?;
        Ok((id(&child)?, full, child))
    };
    match read() {
        Ok((id, full, child)) => Ok(Level { name, id, full, open: Some(child) }),
        Err(error) => Err((name, error)),
    }
}

/// Opens the last level if it is closed. False if it is no longer at its place.
fn reopen_last(levels: &mut [Level]) -> Result<bool, Errno> {
    let Some(last) = levels.len().checked_sub(1) else { return Ok(true) };
    let Some(first) = levels.iter().rposition(|level| level.open.is_some()) else { return Ok(false) };
    let mut stays_open = first + (last - first) / 2;
    for index in first + 1..=last {
        let (above, below) = levels.split_at_mut(index);
        let (Some(parent), Some(level)) = (above.last_mut(), below.first_mut()) else { return Ok(false) };
        let Some(directory) = &parent.open else { return Ok(false) };
        let opened = match open_child(directory, level.name.as_c_str()) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => return Ok(false),
            opened => opened?,
        };
        if id(&opened)? != level.id {
            return Ok(false);
        }
        level.open = Some(opened);
        if index - 1 == stays_open {
            stays_open += (last - stays_open) / 2;
        } else if index - 1 > first {
            parent.open = None;
        }
    }
    Ok(true)
}

/// Shows the entries of a directory to the visitor; the names of the directories that are to be entered.
fn see_entries(directory: &OwnedFd, visitor: &mut impl Visitor) -> Result<Vec<CString>, Errno> {
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
                Err(error) => return Err(error),
            },
            known => known,
        };
        if visitor.see(directory, name, kind) && kind == FileType::Directory {
            full.push(name.to_owned());
        }
    }
    Ok(full)
}

/// Removes a file or an empty directory. Returns whether it is a directory with content.
fn remove_entry(directory: &OwnedFd, name: &CStr, flags: AtFlags, kept: &mut Option<io::Error>) -> bool {
    match unlinkat(directory, name, flags) {
        Ok(()) => false,
        Err(Errno::NOTEMPTY | Errno::EXIST) => true,
        // For example, a file has taken the place of a directory.
        Err(error) if changed(error) => false,
        Err(error) => {
            keep(kept, name, error);
            false
        }
    }
}

/// Whether an error can come from another process that changes the tree.
fn changed(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR | Errno::ISDIR)
}

/// Notes why an entry stays, if it is the first one.
fn keep(kept: &mut Option<io::Error>, name: &CStr, error: Errno) {
    kept.get_or_insert_with(|| reason(OsStr::from_bytes(name.to_bytes()), error));
}

/// The reason why an entry stays, with its name.
fn reason(name: &OsStr, error: Errno) -> io::Error {
    let text = match error {
        Errno::XDEV | Errno::BUSY => format!("{} is a mount point: {error}", name.display()),
        error => format!("{}: {error}", name.display()),
    };
    io::Error::new(io::Error::from(error).kind(), text)
}

/// Opens a directory in another one. Fails if it is a link, or the root of a mount.
fn open_child(directory: impl AsFd, name: impl Arg) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat2(directory, name, flags, Mode::empty(), ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS)
}

fn id(directory: &OwnedFd) -> Result<Id, Errno> {
    let stat = fstat(directory)?;
    Ok((stat.st_dev, stat.st_ino))
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::symlink,
        process::Command,
        sync::atomic::{AtomicBool, Ordering},
        thread,
    };

    use rustix::fs::mkdirat;

    use super::*;

    /// The variable with which the test below runs itself again, with few descriptors.
    const TREE: &str = "OCI_RS_TEST_TREE";

    /// A directory in memory, because the tests make many entries.
    fn in_memory() -> tempfile::TempDir {
        tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory")
    }

    fn open(directory: impl AsFd, path: impl Arg) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(directory, path, flags, Mode::empty())
    }

    /// Nests directories with this name in `path`. Some have an empty directory and a link beside.
    fn nest(path: &Path, name: &str, depth: u32) {
        fs::create_dir(path).expect("a directory");
        let mut current = open(CWD, path).expect("opened");
        for level in 0..depth {
            mkdirat(&current, name, Mode::RWXU).expect("a directory");
            if level % 100 == 0 {
                mkdirat(&current, c"empty", Mode::RWXU).expect("a directory");
                rustix::fs::symlinkat("/", &current, c"link").expect("a link");
            }
            current = open(&current, name).expect("opened");
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
        let directory = in_memory();
        let tree = directory.path().join("tree");
        // The paths are far longer than the kernel takes (PATH_MAX).
        nest(&tree, &"n".repeat(255), 2000);
        nest(&tree.join("deep"), "d", 10_000);
        let test = "tree::tests::a_deep_tree_needs_few_descriptors_and_little_stack";
        let status = Command::new("/bin/sh")
            .args(["-c", "ulimit -n 40; exec \"$0\" --exact \"$1\" --test-threads 1"])
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
        let directory = in_memory();
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
        let directory = in_memory();
        let tree = directory.path().join("tree");
        for round in 0..20 {
            fs::create_dir(&tree).expect("a directory");
            for branch in 0..4 {
                nest(&tree.join(branch.to_string()), "next", 20 + round);
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

    #[test]
    fn a_tree_that_changes_meanwhile_is_removed() {
        let directory = in_memory();
        let (tree, outside) = (directory.path().join("tree"), directory.path().join("outside"));
        fs::create_dir(&outside).expect("a directory");
        fs::write(outside.join("file"), "").expect("written");
        for round in 0..10 {
            nest(&tree, "next", 200);
            let stop = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    // Directories move up and down, come back, and are exchanged for links. Any step may fail.
                    let (one, other) = (tree.join("next/next/next"), tree.join("empty"));
                    while !stop.load(Ordering::Relaxed) {
                        drop(fs::rename(&one, other.join("moved")));
                        drop(fs::rename(other.join("moved"), &one));
                        drop(fs::create_dir_all(tree.join("next/new")));
                        drop(fs::rename(&one, tree.join("aside")));
                        drop(symlink(&outside, &one));
                    }
                });
                // While the directories change, the removal ends, with or without success.
                drop(remove(&tree));
                stop.store(true, Ordering::Relaxed);
            });
            match remove(&tree) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => panic!("round {round}: {error}"),
                _ => assert!(!tree.exists()),
            }
        }
        assert!(outside.join("file").exists(), "no link was followed");
    }

    #[test]
    fn a_mount_in_the_tree_keeps_its_content_and_is_named() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: mounting needs root");
            return;
        }
        let directory = in_memory();
        let (tree, source) = (directory.path().join("tree"), directory.path().join("source"));
        let place = tree.join("a/place");
        for path in [&place, &tree.join("a/other/deeper"), &tree.join("z"), &source] {
            fs::create_dir_all(path).expect("a directory");
        }
        fs::write(source.join("file"), "").expect("written");
        rustix::mount::mount_bind(&source, &place).expect("mounted");
        let error = remove(&tree);
        let left: Vec<_> = fs::read_dir(tree.join("a")).expect("listed").flatten().map(|e| e.file_name()).collect();
        let whole = remove(&place);
        rustix::mount::unmount(&place, rustix::mount::UnmountFlags::empty()).expect("unmounted");
        assert!(error.expect_err("a mount").to_string().contains("place is a mount point"));
        assert!(whole.expect_err("a mount").to_string().contains("place is a mount point"));
        assert!(source.join("file").exists(), "the mount was not entered");
        assert_eq!(left, ["place"], "everything else was removed");
        assert!(!tree.join("z").exists());
        remove(&tree).expect("removed");
    }
}
