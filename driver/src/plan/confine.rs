//! Checks that host paths stay inside the allocation directory when all links are followed.
//!
//! A task can write to most of that directory and can put links there. Therefore the kernel resolves each path (openat2
//! with `RESOLVE_BENEATH`), and a missing directory is made relative to its resolved parent. This check gives an early
//! and clear error. The runtime resolves each path again and mounts the directory that it then holds open.

use std::{
    fs,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use host::resolve;
use rustix::{
    fs::{Mode, OFlags, ResolveFlags},
    io::Errno,
};

use super::task_plan::TaskPlan;

impl TaskPlan {
    /// Checks the confined sources of binds, and makes missing directories of `created_sources`. Blocks on the file
    /// system.
    ///
    /// The error is a complete text for the job's author.
    pub fn check_confined(&self) -> Result<(), String> {
        let root = open_root(&self.alloc_dir)?;
        for path in &self.confined_sources {
            let below = path.strip_prefix(&self.alloc_dir).map_err(|_| leads_out(path))?;
            confine(&root, below, path, self.created_sources.contains(path))?;
        }
        for path in self.created_sources.iter().filter(|path| !self.confined_sources.contains(path)) {
            if !path.exists() {
                fs::create_dir_all(path).map_err(|error| format!("volume source {path:?} cannot be made: {error}"))?;
            }
        }
        Ok(())
    }
}

fn leads_out(path: &Path) -> String {
    format!(
        "{path:?} leads out of the allocation's directory, and this node does not allow host paths: remove the \
         link, or have the operator set `volumes {{ enabled = true }}` in the plugin block"
    )
}

fn open_root(alloc_dir: &Path) -> Result<OwnedFd, String> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(alloc_dir, flags, Mode::empty())
        .map_err(|error| format!("the allocation's directory {alloc_dir:?} cannot be opened: {error}"))
}

fn open_beneath(root: &OwnedFd, path: &Path) -> Result<OwnedFd, Errno> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    resolve::open_below(root, path, OFlags::PATH, ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS)
}

fn confine(root: &OwnedFd, below: &Path, path: &Path, create: bool) -> Result<(), String> {
    match open_beneath(root, below) {
        Ok(_) => Ok(()),
        Err(Errno::XDEV | Errno::LOOP) => Err(leads_out(path)),
        Err(Errno::NOENT) if create => make(root, below, path),
        Err(Errno::NOENT) => {
            Err(format!("the source of a mount {path:?} does not exist: make it first, for example in a prestart task"))
        }
        Err(error) => Err(format!("the source of a mount {path:?} cannot be opened: {error}")),
    }
}

/// Makes the missing directories of a path.
fn make(root: &OwnedFd, below: &Path, path: &Path) -> Result<(), String> {
    let failed = |error: Errno| match error {
        Errno::XDEV | Errno::LOOP => leads_out(path),
        error => format!("volume source {path:?} cannot be made: {error}"),
    };
    let mut made = PathBuf::new();
    for part in below.components() {
        let directory = open_beneath(root, &made).map_err(failed)?;
        match rustix::fs::mkdirat(&directory, part.as_os_str(), Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => made.push(part),
            Err(error) => return Err(failed(error)),
        }
    }
    open_beneath(root, &made).map(drop).map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink, path::Path};

    use super::{confine, open_root};

    /// An allocation directory, and beside it a directory that must stay out of reach.
    fn directories() -> tempfile::TempDir {
        let parent = tempfile::tempdir().unwrap();
        fs::create_dir_all(parent.path().join("alloc/web/local")).unwrap();
        fs::create_dir_all(parent.path().join("secret")).unwrap();
        parent
    }

    fn check(parent: &Path, below: &str, create: bool) -> Result<(), String> {
        let alloc = parent.join("alloc");
        confine(&open_root(&alloc)?, Path::new(below), &alloc.join(below), create)
    }

    #[test]
    fn paths_inside_the_allocation_pass_and_missing_directories_are_made() {
        let parent = directories();
        let alloc = parent.path().join("alloc");
        check(parent.path(), "web/local", false).unwrap();
        check(parent.path(), "", false).unwrap();
        check(parent.path(), "web/new/deep", true).unwrap();
        assert!(alloc.join("web/new/deep").is_dir());
        symlink("local", alloc.join("web/inside")).unwrap();
        check(parent.path(), "web/inside/made", true).unwrap();
        assert!(alloc.join("web/local/made").is_dir());
        let error = check(parent.path(), "web/none", false).unwrap_err();
        assert!(error.contains("web/none\" does not exist"), "{error}");
        assert!(!alloc.join("web/none").exists());
    }

    #[test]
    fn links_out_of_the_allocation_are_refused() {
        let parent = directories();
        let local = parent.path().join("alloc/web/local");
        symlink("../../../secret", local.join("relative")).unwrap();
        symlink(parent.path().join("secret"), local.join("absolute")).unwrap();
        symlink("/proc/self/root", local.join("magic")).unwrap();
        symlink("loop", local.join("loop")).unwrap();
        for link in ["relative", "absolute", "magic", "loop"] {
            for (path, create) in [(format!("web/local/{link}"), false), (format!("web/local/{link}/new"), true)] {
                let error = check(parent.path(), &path, create).unwrap_err();
                assert!(error.contains("leads out of the allocation's directory"), "{link}: {error}");
            }
        }
        assert_eq!(fs::read_dir(parent.path().join("secret")).unwrap().count(), 0);
    }

    #[test]
    fn a_file_cannot_become_a_directory() {
        let parent = directories();
        fs::write(parent.path().join("alloc/web/file"), "").unwrap();
        check(parent.path(), "web/file", true).unwrap();
        assert!(check(parent.path(), "web/file/x", true).is_err());
    }
}
