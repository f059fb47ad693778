//! The directory a layer is unpacked into: finding and making parent directories without ever leaving it.
//!
//! Every path is resolved relative to the root's descriptor with `openat2`, which refuses to leave it or to follow a link. A
//! parent that is a symbolic link of the same layer is resolved here, component by component, with the layer's root as `/`. The
//! result is a [`Dir`] that knows its canonical path, so that all bookkeeping speaks about real places. Parents that the archive
//! never mentions are made and remembered as implicit: their true attributes are those of a lower layer.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    rc::Rc,
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat},
    io::Errno,
};

use crate::name;

pub(crate) const MAX_LINKS: usize = 40;
/// Directories inside each other: far more than anybody uses, few enough for one descriptor each.
const MAX_DEPTH: usize = 512;
/// As the kernel has it for one path (PATH_MAX with its NUL), but counted where links lead to.
const MAX_PATH: usize = 4095;
/// Steps of one lookup, those through links included.
pub(crate) const MAX_STEPS: usize = 4096;
const CACHED: usize = 256;

/// An open directory of the layer.
pub(crate) struct Dir {
    fd: OwnedFd,
    /// Canonical path from the root.
    pub(crate) path: Vec<u8>,
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Why a directory could not be opened.
#[derive(Debug)]
pub(crate) enum LookupError {
    /// It does not exist (and was not to be made).
    Missing,
    /// Something on the way is no directory, or links lead in circles.
    NotADir,
    /// It lies deeper than anything may.
    TooDeep,
    /// The file system failed.
    Io(io::Error),
}

impl From<Errno> for LookupError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NOENT => LookupError::Missing,
            Errno::NOTDIR | Errno::LOOP => LookupError::NotADir,
            other => LookupError::Io(other.into()),
        }
    }
}

/// The layer's directory.
pub(crate) struct Tree {
    root: Rc<Dir>,
    cache: HashMap<Vec<u8>, Rc<Dir>>,
    implicit: BTreeSet<Vec<u8>>,
    made: usize,
}

const OPEN: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

impl Tree {
    /// Takes the empty root directory. Until the archive describes it, it is implicit like any other.
    pub(crate) fn new(root: OwnedFd) -> Tree {
        let root = Rc::new(Dir { fd: root, path: Vec::new() });
        Tree { root, cache: HashMap::new(), implicit: BTreeSet::from([Vec::new()]), made: 0 }
    }

    /// The directory at a clean path, links followed inside the root; missing ones are made if `make`.
    pub(crate) fn dir(&mut self, path: &[u8], make: bool) -> Result<Rc<Dir>, LookupError> {
        if path.is_empty() {
            return Ok(Rc::clone(&self.root));
        }
        if let Some(dir) = self.cache.get(path) {
            return Ok(Rc::clone(dir));
        }
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let dir = match rustix::fs::openat2(&self.root.fd, path, OPEN | OFlags::DIRECTORY, Mode::empty(), resolve) {
            Ok(fd) => {
                check_depth(path)?;
                Rc::new(Dir { fd, path: path.to_vec() })
            }
            Err(Errno::LOOP) => self.walk(path, make)?,
            Err(Errno::NOENT) if make => self.walk(path, make)?,
            Err(errno) => return Err(errno.into()),
        };
        if self.cache.len() >= CACHED {
            self.cache.clear();
        }
        self.cache.insert(path.to_vec(), Rc::clone(&dir));
        Ok(dir)
    }

    /// Component by component, for paths with links and for paths to be made.
    fn walk(&mut self, path: &[u8], make: bool) -> Result<Rc<Dir>, LookupError> {
        let mut todo: VecDeque<Vec<u8>> = components(path).collect();
        let mut stack = vec![Rc::clone(&self.root)];
        let mut links = 0;
        let mut steps = 0;
        while let Some(component) = todo.pop_front() {
            steps += 1;
            if steps > MAX_STEPS {
                return Err(LookupError::TooDeep);
            }
            let here = stack.last().unwrap_or(&self.root).clone();
            if component == b".." {
                // As everywhere, the root is its own parent.
                if stack.len() > 1 {
                    stack.pop();
                }
                continue;
            }
            let path = name::join(&here.path, &component);
            check_depth(&path)?;
            let fd = self.step(&here, &component, &path, make)?;
            let stat = rustix::fs::fstat(&fd)?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => stack.push(Rc::new(Dir { fd, path })),
                FileType::Symlink => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(LookupError::NotADir);
                    }
                    let target = rustix::fs::readlinkat(&fd, c"", Vec::new())?.into_bytes();
                    if target.starts_with(b"/") {
                        stack.truncate(1);
                    }
                    for part in components(&target).rev() {
                        todo.push_front(part);
                    }
                }
                _ => return Err(LookupError::NotADir),
            }
        }
        stack.pop().ok_or(LookupError::Missing)
    }

    /// One component without following it; made if missing and wanted.
    fn step(&mut self, here: &Dir, component: &[u8], path: &[u8], make: bool) -> Result<OwnedFd, LookupError> {
        let open = || rustix::fs::openat(here, component, OPEN | OFlags::NOFOLLOW, Mode::empty());
        match open() {
            // Only a link leads here: entries of such names are refused before.
            Err(Errno::NOENT) if make && name::is_whiteout(component) => Err(LookupError::NotADir),
            Err(Errno::NOENT) if make => {
                rustix::fs::mkdirat(here, component, Mode::from_raw_mode(0o755))?;
                self.implicit.insert(path.to_vec());
                self.made += 1;
                Ok(open()?)
            }
            result => Ok(result?),
        }
    }

    /// The archive describes this directory after all.
    pub(crate) fn made_explicit(&mut self, path: &[u8]) {
        self.implicit.remove(path);
    }

    /// How many directories were made on the way to others, so far.
    pub(crate) fn made(&self) -> usize {
        self.made
    }

    /// Directories that the archive never described.
    pub(crate) fn implicit(&self) -> &BTreeSet<Vec<u8>> {
        &self.implicit
    }

    /// Removes what stands at a name, whatever it is. Says whether it was a directory or a link, after which descriptors may be stale
    /// (they are forgotten).
    pub(crate) fn remove(&mut self, parent: &Dir, last: &[u8]) -> Result<bool, io::Error> {
        let stat = rustix::fs::statat(parent, last, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Directory {
            remove_all(parent.as_fd(), last)?;
        } else {
            rustix::fs::unlinkat(parent, last, AtFlags::empty())?;
        }
        let structural = matches!(kind, FileType::Directory | FileType::Symlink);
        if structural {
            self.cache.clear();
            let path = name::join(&parent.path, last);
            take_within(&mut self.implicit, &path);
        }
        Ok(structural)
    }

    /// Opens a directory by its canonical path to change its attributes, if it is still one and still there.
    pub(crate) fn open_dir(&mut self, path: &[u8]) -> Result<(OwnedFd, Stat), LookupError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = if path.is_empty() {
            rustix::fs::openat(&self.root.fd, c".", flags, Mode::empty())?
        } else {
            let (parent, last) = name::split(path);
            let found = self.dir(parent, false)?;
            if found.path != parent {
                return Err(LookupError::NotADir);
            }
            rustix::fs::openat(&*found, last, flags, Mode::empty())?
        };
        let stat = rustix::fs::fstat(&fd)?;
        Ok((fd, stat))
    }
}

pub(crate) fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = Vec<u8>> {
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".").map(<[u8]>::to_vec)
}

pub(crate) fn check_depth(path: &[u8]) -> Result<(), LookupError> {
    let depth = path.iter().filter(|byte| **byte == b'/').count() + 1;
    if path.len() > MAX_PATH || depth > MAX_DEPTH { Err(LookupError::TooDeep) } else { Ok(()) }
}

/// Removes `dir` and what lies below it from a set of paths.
pub(crate) fn take_within(paths: &mut BTreeSet<Vec<u8>>, dir: &[u8]) {
    paths.remove(dir);
    let (inside, end) = name::range_within(dir);
    let gone: Vec<_> = paths.range(inside..end).cloned().collect();
    for path in gone {
        paths.remove(&path);
    }
}

/// Whether `path` is `dir` or lies below it.
pub(crate) fn is_within(path: &[u8], dir: &[u8]) -> bool {
    path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest[0] == b'/' || dir.is_empty())
}

/// Removes a directory with all that is in it. It holds one descriptor per level, of which there are at most `MAX_DEPTH` and one.
fn remove_all(parent: BorrowedFd<'_>, last: &[u8]) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(parent, last, flags, Mode::empty())?;
    for entry in rustix::fs::Dir::read_from(&fd)? {
        let entry = entry?;
        let child = entry.file_name();
        if child == c"." || child == c".." {
            continue;
        }
        match rustix::fs::unlinkat(&fd, child, AtFlags::empty()) {
            Err(Errno::ISDIR | Errno::PERM) => remove_all(fd.as_fd(), child.to_bytes())?,
            result => result?,
        }
    }
    rustix::fs::unlinkat(parent, last, AtFlags::REMOVEDIR)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> (tempfile::TempDir, Tree) {
        let directory = tempfile::tempdir().unwrap();
        let tree = Tree::new(std::fs::File::open(directory.path()).unwrap().into());
        (directory, tree)
    }

    #[test]
    fn makes_and_remembers_missing_parents() {
        let (directory, mut tree) = tree();
        assert!(matches!(tree.dir(b"a/b", false), Err(LookupError::Missing)));
        assert_eq!(tree.dir(b"a/b", true).unwrap().path, b"a/b");
        assert!(directory.path().join("a/b").is_dir());
        let implicit: Vec<_> = tree.implicit().iter().map(Vec::as_slice).collect();
        assert_eq!(implicit, [&b""[..], b"a", b"a/b"]);
        let root = Rc::clone(&tree.root);
        tree.remove(&root, b"a").unwrap();
        assert_eq!(tree.implicit().len(), 1);
        assert!(matches!(tree.dir(b"a/b", false), Err(LookupError::Missing)));
    }

    #[test]
    fn links_resolve_inside_the_root() {
        let (directory, mut tree) = tree();
        let at = |name: &str| directory.path().join(name);
        std::fs::create_dir_all(at("usr/lib")).unwrap();
        std::fs::create_dir(at("etc")).unwrap();
        std::os::unix::fs::symlink("usr/lib", at("lib")).unwrap();
        std::os::unix::fs::symlink("/etc", at("absolute")).unwrap();
        std::os::unix::fs::symlink("../../../../etc", at("usr/up")).unwrap();
        std::os::unix::fs::symlink("circle", at("circle")).unwrap();
        std::os::unix::fs::symlink("/nowhere/at/all", at("dangling")).unwrap();
        std::fs::write(at("file"), "").unwrap();
        assert_eq!(tree.dir(b"lib", false).unwrap().path, b"usr/lib");
        assert_eq!(tree.dir(b"lib/new", true).unwrap().path, b"usr/lib/new");
        assert_eq!(tree.dir(b"absolute", false).unwrap().path, b"etc");
        assert_eq!(tree.dir(b"usr/up", false).unwrap().path, b"etc");
        assert_eq!(tree.dir(b"dangling/x", true).unwrap().path, b"nowhere/at/all/x");
        // Found by fuzzing: what a link names is made, but no whiteout can be.
        std::os::unix::fs::symlink("etc/.wh.gone", at("whiteout")).unwrap();
        for bad in [&b"circle"[..], b"file", b"file/x", b"whiteout/x"] {
            assert!(matches!(tree.dir(bad, true), Err(LookupError::NotADir)), "{bad:?}");
        }
    }

    #[test]
    fn depth_is_counted_where_links_lead() {
        let (directory, mut tree) = tree();
        let deep = vec!["d"; MAX_DEPTH].join("/");
        assert!(tree.dir(deep.as_bytes(), true).is_ok());
        assert!(matches!(tree.dir(format!("{deep}/d").as_bytes(), true), Err(LookupError::TooDeep)));
        std::os::unix::fs::symlink(&deep, directory.path().join("link")).unwrap();
        assert!(matches!(tree.dir(b"link/d", true), Err(LookupError::TooDeep)));
        // Nor by going up and down all the time.
        std::os::unix::fs::symlink("d/../".repeat(1300), directory.path().join("long")).unwrap_err();
        std::os::unix::fs::symlink("d/../".repeat(800), directory.path().join("long")).unwrap();
        assert!(matches!(tree.dir(b"long/long/long", true), Err(LookupError::TooDeep)));
        let names = format!("{}/{}", "n".repeat(255), "m".repeat(255));
        let wide = vec![names; 9].join("/");
        assert!(matches!(tree.dir(wide.as_bytes(), true), Err(LookupError::TooDeep | LookupError::Io(_))));
    }

    #[test]
    fn a_directory_is_taken_out_with_what_is_in_it() {
        let mut paths: BTreeSet<Vec<u8>> =
            ["a", "a!", "a-b", "a/b", "a/b/c", "a0", "b"].iter().map(|path| path.as_bytes().to_vec()).collect();
        take_within(&mut paths, b"a");
        let left: Vec<_> = paths.iter().map(|path| std::str::from_utf8(path).unwrap()).collect();
        assert_eq!(left, ["a!", "a-b", "a0", "b"]);
    }

    #[test]
    fn containment_is_by_component() {
        assert!(is_within(b"a/b", b"a"));
        assert!(is_within(b"a", b"a"));
        assert!(is_within(b"a", b""));
        assert!(!is_within(b"ab", b"a"));
    }
}
