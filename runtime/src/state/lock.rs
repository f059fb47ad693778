//! The task lock: under it a task's directory is created and removed. And the mark of an incomplete directory.
//!
//! The lock is flock(2) on the directory. A process that creates or removes the container holds it, and a new monitor
//! holds it until it has recorded itself. So the holder of the lock finds every process that may still work in the
//! directory.
//!
//! The mark is a file. It is in the directory from the creation of the directory until the container runs, and again
//! from the first step of the removal to the last one. If a directory has the mark and its lock is free, a killed
//! process left it. No caller has a handle to its container.
//!
//! When the container runs, the mark becomes the mark of an unanswered start. It is removed when the caller has shown
//! that it received the answer to the start.

use std::{
    fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use host::{
    durable::private_file,
    lock::{Locked, Wait, lock},
};
use rustix::fs::{Mode, OFlags, open};

use super::task_dir::TaskDir;

/// The file name of the mark of an incomplete directory.
const MARK: &str = "unclaimed";
/// The file name of the mark of an unanswered start.
const UNANSWERED: &str = "unanswered";

/// The lock of a task's directory. It is free when every copy of its descriptor is closed.
#[derive(Debug)]
pub(crate) struct TaskLock {
    directory: OwnedFd,
}

impl TaskLock {
    /// Creates the directory, locked and marked. An existing directory is an error of the kind `AlreadyExists`.
    pub fn create(task: &TaskDir) -> io::Result<Self> {
        loop {
            task.create()?;
            failpoint::at("start-before-mark");
            // A sweep can have removed the empty directory as a leftover before it was locked.
            if let Some(lock) = Self::acquire(task)? {
                lock.mark(task)?;
                return Ok(lock);
            }
        }
    }

    /// Waits for the lock of the directory; `None` if there is no directory, or if it was removed before the lock was
    /// free.
    pub fn acquire(task: &TaskDir) -> io::Result<Option<Self>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || Ok(open(task.path(), flags, Mode::empty())?);
        match lock(task.path(), Wait::Forever, false, open)? {
            Locked::Held(directory) => Ok(Some(Self { directory })),
            Locked::Missing | Locked::Busy => Ok(None),
        }
    }

    /// The lock's descriptor. A process that has a copy of it shares the lock.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Marks the directory as incomplete: its container does not run yet, or is being removed.
    pub fn mark(&self, task: &TaskDir) -> io::Result<()> {
        private_file(&task.file(MARK)).map(drop)
    }

    /// The container runs: the caller is about to receive a handle to it. The mark of an incomplete directory becomes
    /// the mark of an unanswered start.
    pub fn unmark(&self, task: &TaskDir) -> io::Result<()> {
        fs::rename(task.file(MARK), task.file(UNANSWERED))
    }

    /// Whether the directory has the mark.
    pub fn is_marked(&self, task: &TaskDir) -> bool {
        is_marked(task)
    }

    /// Removes the directory. The mark is removed last, so that a directory which a killed process left half removed
    /// has it.
    pub fn remove(self, task: &TaskDir) -> io::Result<()> {
        for entry in fs::read_dir(task.path())? {
            let entry = entry?;
            let is_directory = entry.file_type()?.is_dir();
            if is_directory {
                host::tree::remove(&entry.path())?;
            } else if entry.file_name() != MARK {
                fs::remove_file(entry.path())?;
            }
        }
        failpoint::at("destroy-before-unmark");
        host::tree::remove(task.path())
    }
}

/// Whether a directory has the mark of an incomplete directory.
pub(crate) fn is_marked(task: &TaskDir) -> bool {
    task.file(MARK).exists()
}

/// Whether the caller has not shown yet that it received the answer to the container's start.
pub(crate) fn is_unanswered(task: &TaskDir) -> bool {
    task.file(UNANSWERED).exists()
}

/// Removes the mark of an unanswered start, if there is one.
pub(crate) fn mark_answered(task: &TaskDir) -> io::Result<()> {
    match fs::remove_file(task.file(UNANSWERED)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
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
    fn a_directory_is_created_once_and_marked() {
        let (_root, task) = directory();
        let lock = TaskLock::create(&task).expect("made");
        assert!(lock.is_marked(&task));
        let again = TaskLock::create(&task).expect_err("it exists already");
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        lock.unmark(&task).expect("unmarked");
        assert!(!lock.is_marked(&task) && is_unanswered(&task));
        for _ in 0..2 {
            mark_answered(&task).expect("answered");
            assert!(!is_unanswered(&task));
        }
    }

    #[test]
    fn a_waiter_for_a_directory_that_was_removed_finds_none() {
        let (_root, task) = directory();
        let lock = TaskLock::create(&task).expect("made");
        fs::create_dir(task.file("bundle")).expect("a directory in it");
        let (told, listen) = mpsc::channel();
        let waiting = thread::spawn({
            let task = task.clone();
            move || {
                told.send(()).expect("a listener");
                TaskLock::acquire(&task).expect("acquired").is_none()
            }
        });
        listen.recv().expect("the other thread");
        lock.remove(&task).expect("removed");
        assert!(waiting.join().expect("the other thread"));
        assert!(!task.path().exists());
    }
}
