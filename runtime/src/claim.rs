//! Whose a task's directory is: the lock under which it is made and removed, and the mark on one that nobody asks for.
//!
//! The lock (flock on the directory) is held by whoever makes or removes the container, and by a new monitor until it has
//! recorded itself: who gets the lock finds every process that may still work in the directory. The mark lies in the directory
//! from its first moment until its container runs, and again from the first step of its removal to the last. So a directory
//! that has the mark and whose lock is free was left by a process that was killed, and no handle that could bring its
//! container back is of any use.

use std::{
    fs, io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::MetadataExt,
    },
};

use rustix::{
    fs::{FlockOperation, Mode, OFlags, fstat, open},
    io::{Errno, retry_on_intr},
};

use crate::state::{TaskDir, private_file};

/// The mark's name.
const MARK: &str = "unclaimed";

/// A task's directory under lock. Dropped, it lets go, unless a descriptor of it was given away.
#[derive(Debug)]
pub(crate) struct Claim {
    directory: OwnedFd,
}

impl Claim {
    /// Makes the directory, locked and marked; one that is there already is an error of the kind `AlreadyExists`.
    pub fn make(task: &TaskDir) -> io::Result<Self> {
        loop {
            task.create()?;
            failpoint::at("start-before-mark");
            // A sweep can have taken the empty directory for a leftover before it was locked.
            if let Some(claim) = Self::take(task)? {
                claim.mark(task)?;
                return Ok(claim);
            }
        }
    }

    /// Waits for the lock of the directory; `None` when there is no directory, or no more once the lock was free.
    pub fn take(task: &TaskDir) -> io::Result<Option<Self>> {
        loop {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let directory = match open(task.path(), flags, Mode::empty()) {
                Err(Errno::NOENT) => return Ok(None),
                directory => directory?,
            };
            retry_on_intr(|| rustix::fs::flock(&directory, FlockOperation::LockExclusive))?;
            // Whoever had the lock may have removed the directory, and another one may have come in its place.
            let locked = fstat(&directory)?;
            match fs::symlink_metadata(task.path()) {
                Ok(now) if (now.dev(), now.ino()) == (locked.st_dev, locked.st_ino) => {
                    return Ok(Some(Self { directory }));
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// The lock's descriptor: a process that has a copy of it shares the lock.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Marks the directory as one that nobody asks for: not yet, or no more.
    pub fn mark(&self, task: &TaskDir) -> io::Result<()> {
        private_file(&task.file(MARK)).map(drop)
    }

    /// Takes the mark away: from now on the container is somebody's.
    pub fn unmark(&self, task: &TaskDir) -> io::Result<()> {
        fs::remove_file(task.file(MARK))
    }

    /// Whether the directory has the mark.
    pub fn is_marked(&self, task: &TaskDir) -> bool {
        task.file(MARK).exists()
    }

    /// Removes the directory; the mark goes last, so that what a killed process leaves half removed is known as such.
    pub fn remove(self, task: &TaskDir) -> io::Result<()> {
        for entry in fs::read_dir(task.path())? {
            let entry = entry?;
            let is_directory = entry.file_type()?.is_dir();
            if is_directory {
                fs::remove_dir_all(entry.path())?;
            } else if entry.file_name() != MARK {
                fs::remove_file(entry.path())?;
            }
        }
        failpoint::at("destroy-before-unmark");
        fs::remove_dir_all(task.path())
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;

    fn directory() -> (tempfile::TempDir, TaskDir) {
        let root = tempfile::tempdir().expect("a directory");
        let task = TaskDir::at(root.path().join("task"));
        (root, task)
    }

    #[test]
    fn a_directory_is_made_once_and_marked() {
        let (_root, task) = directory();
        let claim = Claim::make(&task).expect("made");
        assert!(claim.is_marked(&task));
        let again = Claim::make(&task).expect_err("it is there already");
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        claim.unmark(&task).expect("unmarked");
        assert!(!claim.is_marked(&task));
    }

    #[test]
    fn whoever_waited_for_a_directory_that_was_removed_finds_none() {
        let (_root, task) = directory();
        let claim = Claim::make(&task).expect("made");
        fs::create_dir(task.file("bundle")).expect("something in it");
        let (told, listen) = mpsc::channel();
        let waiting = thread::spawn({
            let task = task.clone();
            move || {
                told.send(()).expect("a listener");
                Claim::take(&task).expect("a look").is_none()
            }
        });
        listen.recv().expect("the other one");
        claim.remove(&task).expect("removed");
        assert!(waiting.join().expect("the other one"));
        assert!(!task.path().exists());
    }
}
