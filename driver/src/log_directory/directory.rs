//! The two log directories of an allocation on disk.
//!
//! Tasks write to the tasks' directory, so each step is relative to an open directory and follows no link.

use std::{
    ffi::{CStr, CString},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use host::resolve::open_below;
use rustix::{
    fs::{
        AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Uid, fchmod, fchown, fstat, mkdirat, open, openat,
        readlinkat, statat, symlinkat, unlinkat,
    },
    io::Errno,
};

use super::{NOMAD, TASKS};

/// The permissions with which the tasks' directory is made. It gets its owner first and its permissions last, so it is
/// complete when it has other ones.
const UNFINISHED: u32 = 0;

/// The log directories of an allocation, kept open.
#[derive(Debug)]
pub struct LogDirectory {
    nomad: OwnedFd,
    tasks: OwnedFd,
}

impl LogDirectory {
    /// Makes what is missing of the tasks' directory, with the owner of Nomad's.
    pub fn make(alloc_dir: &Path) -> io::Result<Self> {
        let nomad = open_nomad(alloc_dir)?;
        make_directory(&nomad, TASKS, Mode::from_raw_mode(UNFINISHED))?;
        let directory = Self { tasks: open_directory(&nomad, TASKS)?, nomad };
        directory.finish()?;
        directory.make_mount_point()?;
        Ok(directory)
    }

    /// Opens the directories; `None` if the tasks have none: an earlier release started them.
    pub fn open(alloc_dir: &Path) -> io::Result<Option<Self>> {
        let nomad = open_nomad(alloc_dir)?;
        match open_directory(&nomad, TASKS) {
            Ok(tasks) => Ok(Some(Self { nomad, tasks })),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Nomad's directory.
    pub fn nomad(&self) -> BorrowedFd<'_> {
        self.nomad.as_fd()
    }

    /// Makes the missing links to Nomad's files, and removes those without a file. A task can have made any number of
    /// files, so no list of them is kept.
    pub fn link_all(&self) -> io::Result<()> {
        for entry in Dir::read_from(&self.nomad)? {
            self.link(entry?.file_name())?;
        }
        for entry in Dir::read_from(&self.tasks)? {
            let entry = entry?;
            if !matches!(entry.file_type(), FileType::Symlink | FileType::Unknown) {
                continue;
            }
            match statat(&self.nomad, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(_) => {}
                Err(Errno::NOENT) => self.unlink(entry.file_name())?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Links a file of Nomad's. A file of a task with this name stays.
    pub fn link(&self, name: &CStr) -> io::Result<()> {
        if name.to_bytes().starts_with(b".") {
            return Ok(());
        }
        match statat(&self.nomad, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::RegularFile => {}
            Ok(_) | Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        match symlinkat(target(name).as_c_str(), &self.tasks, name) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the link to a file that Nomad has removed. A task's file or link stays.
    pub fn unlink(&self, name: &CStr) -> io::Result<()> {
        match readlinkat(&self.tasks, name, Vec::new()) {
            Ok(found) if found == target(name) => {}
            Ok(_) | Err(Errno::NOENT | Errno::INVAL) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        match unlinkat(&self.tasks, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT | Errno::ISDIR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Sets owner and mode, unless an earlier start did it: the tasks may have changed them since. An interrupted start
    /// leaves the permissions of [`UNFINISHED`], whichever step it reached.
    fn finish(&self) -> io::Result<()> {
        let (made, model) = (fstat(&self.tasks)?, fstat(&self.nomad)?);
        if made.st_mode & 0o777 == UNFINISHED {
            fchown(&self.tasks, Some(Uid::from_raw(model.st_uid)), Some(Gid::from_raw(model.st_gid)))?;
            fchmod(&self.tasks, Mode::from_raw_mode(model.st_mode & 0o7777))?;
        }
        Ok(())
    }

    fn make_mount_point(&self) -> io::Result<()> {
        let mode = Mode::from_raw_mode(0o755);
        make_directory(&self.tasks, NOMAD, mode)?;
        match open_directory(&self.tasks, NOMAD) {
            Ok(_) => Ok(()),
            // A task has put a file there.
            Err(Errno::NOTDIR | Errno::LOOP) => {
                unlinkat(&self.tasks, NOMAD, AtFlags::empty())?;
                Ok(mkdirat(&self.tasks, NOMAD, mode)?)
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// The content of the link to a file of Nomad's.
fn target(name: &CStr) -> CString {
    let path = [NOMAD.as_bytes(), b"/", name.to_bytes()].concat();
    CString::new(path).unwrap_or_default()
}

/// Opens Nomad's log directory of an allocation. No link below the allocation's directory is followed.
pub fn open_nomad(alloc_dir: &Path) -> io::Result<OwnedFd> {
    let root = open(alloc_dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    Ok(open_below(&root, "alloc/logs", OFlags::RDONLY | OFlags::DIRECTORY, resolve)?)
}

fn open_directory(parent: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::empty())
}

fn make_directory(parent: &OwnedFd, name: &str, mode: Mode) -> io::Result<()> {
    match mkdirat(parent, name, mode) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink},
        path::PathBuf,
    };

    use super::*;

    struct Alloc {
        directory: tempfile::TempDir,
    }

    impl Alloc {
        fn new() -> Self {
            let alloc = Self { directory: tempfile::tempdir().unwrap() };
            fs::create_dir_all(alloc.logs("")).unwrap();
            fs::set_permissions(alloc.logs(""), fs::Permissions::from_mode(0o777)).unwrap();
            alloc
        }

        fn logs(&self, name: &str) -> PathBuf {
            self.directory.path().join("alloc/logs").join(name)
        }

        fn make(&self) -> LogDirectory {
            LogDirectory::make(self.directory.path()).unwrap()
        }

        /// The names of the tasks' directory that are links.
        fn links(&self) -> Vec<String> {
            let entries = fs::read_dir(self.logs("tasks")).unwrap().map(Result::unwrap);
            let links = entries.filter(|entry| entry.file_type().unwrap().is_symlink());
            let mut names: Vec<String> = links.map(|entry| entry.file_name().into_string().unwrap()).collect();
            names.sort();
            names
        }
    }

    #[test]
    fn each_file_of_nomads_has_a_link() {
        let alloc = Alloc::new();
        assert!(LogDirectory::open(alloc.directory.path()).unwrap().is_none());
        for name in ["web.stdout.0", "web.stderr.0", ".web.stdout.fifo"] {
            fs::write(alloc.logs(name), name).unwrap();
        }
        let directory = alloc.make();
        directory.link_all().unwrap();
        assert_eq!(alloc.links(), ["web.stderr.0", "web.stdout.0"]);
        fs::remove_file(alloc.logs("web.stdout.0")).unwrap();
        fs::write(alloc.logs("web.stdout.1"), "").unwrap();
        let directory = LogDirectory::open(alloc.directory.path()).unwrap().unwrap_or(directory);
        directory.link_all().unwrap();
        assert_eq!(alloc.links(), ["web.stderr.0", "web.stdout.1"]);
        assert_eq!(
            fs::read_link(alloc.logs("tasks/web.stdout.1")).unwrap(),
            PathBuf::from(".nomad/web.stdout.1"),
            "valid where the container has Nomad's directory"
        );
        directory.unlink(c"web.stdout.1").unwrap();
        directory.link(c"tasks").unwrap();
        directory.link(c"missing").unwrap();
        assert_eq!(alloc.links(), ["web.stderr.0"]);
    }

    #[test]
    fn files_and_links_of_tasks_stay() {
        let alloc = Alloc::new();
        let directory = alloc.make();
        for name in ["a.stdout.0", "b.stdout.0"] {
            fs::write(alloc.logs(name), "nomad").unwrap();
        }
        fs::write(alloc.logs("tasks/a.stdout.0"), "task").unwrap();
        symlink("/etc/hostname", alloc.logs("tasks/b.stdout.0")).unwrap();
        symlink(".nomad/other", alloc.logs("tasks/c")).unwrap();
        fs::create_dir(alloc.logs("tasks/d")).unwrap();
        for number in 0..2000 {
            fs::write(alloc.logs(&format!("tasks/many{number}")), "").unwrap();
            symlink(format!(".nomad/gone{number}"), alloc.logs(&format!("tasks/gone{number}"))).unwrap();
        }
        directory.link_all().unwrap();
        assert_eq!(fs::read_dir(alloc.logs("tasks")).unwrap().count(), 2005, "all links to missing files are removed");
        for name in [c"a.stdout.0", c"b.stdout.0", c"c", c"d"] {
            directory.unlink(name).unwrap();
        }
        assert_eq!(fs::read_to_string(alloc.logs("tasks/a.stdout.0")).unwrap(), "task");
        assert_eq!(alloc.links(), ["b.stdout.0", "c"]);
        assert_eq!(fs::read_to_string(alloc.logs("b.stdout.0")).unwrap(), "nomad");
    }

    #[test]
    fn the_directory_is_like_nomads_until_a_task_changes_it() {
        let alloc = Alloc::new();
        let root = rustix::process::geteuid().is_root();
        if root {
            chown(alloc.logs(""), Some(65534), Some(65534)).unwrap();
        }
        let state = || fs::metadata(alloc.logs("tasks")).unwrap();
        let mode = || state().permissions().mode() & 0o7777;
        // A start that was interrupted before it set the owner, and one that was interrupted afterwards.
        for has_owner in [false, true] {
            fs::create_dir(alloc.logs("tasks")).unwrap();
            fs::set_permissions(alloc.logs("tasks"), fs::Permissions::from_mode(UNFINISHED)).unwrap();
            if has_owner && root {
                chown(alloc.logs("tasks"), Some(65534), Some(65534)).unwrap();
            }
            alloc.make();
            assert_eq!(mode(), 0o777);
            let model = fs::metadata(alloc.logs("")).unwrap();
            assert_eq!((state().uid(), state().gid()), (model.uid(), model.gid()));
            if !has_owner {
                fs::remove_dir_all(alloc.logs("tasks")).unwrap();
            }
        }
        fs::set_permissions(alloc.logs("tasks"), fs::Permissions::from_mode(0o2750)).unwrap();
        alloc.make();
        assert_eq!(mode(), 0o2750);
    }

    #[test]
    fn links_lead_to_no_other_place() {
        let alloc = Alloc::new();
        let outside = tempfile::tempdir().unwrap();
        symlink(outside.path(), alloc.logs("tasks")).unwrap();
        assert!(LogDirectory::make(alloc.directory.path()).is_err());
        assert!(LogDirectory::open(alloc.directory.path()).is_err());
        fs::remove_file(alloc.logs("tasks")).unwrap();
        alloc.make();
        fs::remove_dir(alloc.logs("tasks/.nomad")).unwrap();
        symlink(outside.path(), alloc.logs("tasks/.nomad")).unwrap();
        alloc.make();
        assert!(fs::symlink_metadata(alloc.logs("tasks/.nomad")).unwrap().is_dir());
        fs::rename(alloc.logs(""), alloc.directory.path().join("away")).unwrap();
        symlink(alloc.directory.path().join("away"), alloc.directory.path().join("alloc/logs")).unwrap();
        assert!(LogDirectory::make(alloc.directory.path()).is_err());
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    }
}
