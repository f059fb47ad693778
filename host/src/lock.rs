//! File locks (flock(2)) on files and directories that their holder may remove.
//!
//! The kernel frees such a lock when the last descriptor of it is closed, so also when its holder is killed. A holder
//! may remove the file before it lets go; a process that waited then holds the lock of a file that has no name any
//! more. [`lock`] therefore compares the locked file with the one that has the name now, and starts again if they
//! differ.

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::{
        fd::AsFd,
        unix::fs::{DirBuilderExt, MetadataExt},
    },
    path::Path,
};

use rustix::{
    fs::{FlockOperation, fstat},
    io::{Errno, retry_on_intr},
};

/// Whether a call waits for a lock that another process holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Until the lock is free.
    Forever,
    /// Not at all.
    No,
}

/// The outcome of [`lock`].
#[derive(Debug)]
pub enum Locked<F> {
    /// The lock is held until the last copy of this descriptor is closed.
    Held(F),
    /// Another process or descriptor holds it. With [`Wait::No`] only.
    Busy,
    /// There is no such file, or it was removed before the lock was free.
    Missing,
}

/// Takes the exclusive lock of the file or directory at `path`. `open` opens it, and may create it; its error
/// [`io::ErrorKind::NotFound`] means [`Locked::Missing`].
///
/// Where `open` creates a missing file, a file that vanished is created again, so [`Locked::Missing`] is returned only
/// when `open` says so or when nothing has the name after the lock was taken and `recreate` is false.
pub fn lock<F: AsFd>(
    path: &Path,
    wait: Wait,
    recreate: bool,
    mut open: impl FnMut() -> io::Result<F>,
) -> io::Result<Locked<F>> {
    let operation = match wait {
        Wait::Forever => FlockOperation::LockExclusive,
        Wait::No => FlockOperation::NonBlockingLockExclusive,
    };
    loop {
        let file = match open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Locked::Missing),
            file => file?,
        };
        match retry_on_intr(|| rustix::fs::flock(&file, operation)) {
            Err(Errno::WOULDBLOCK) => return Ok(Locked::Busy),
            locked => locked?,
        }
        let locked = fstat(&file)?;
        match fs::symlink_metadata(path) {
            Ok(named) if (named.dev(), named.ino()) == (locked.st_dev, locked.st_ino) => return Ok(Locked::Held(file)),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound && recreate => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Locked::Missing),
            Err(error) => return Err(error),
        }
    }
}

/// Opens a directory for [`lock`]. A missing directory is made, with the mode 0700; its parent must exist. Another
/// process may remove the directory between the two steps. Then both are repeated.
pub fn open_directory(path: &Path) -> io::Result<File> {
    loop {
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made?,
        }
        match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => return opened,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;

    fn created(path: &Path) -> io::Result<File> {
        File::options().create(true).truncate(false).write(true).open(path)
    }

    fn held(path: &Path, wait: Wait, recreate: bool) -> Locked<File> {
        lock(path, wait, recreate, || if recreate { created(path) } else { File::open(path) }).unwrap()
    }

    #[test]
    fn a_held_lock_is_busy_and_a_missing_file_is_missing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        assert!(matches!(held(&path, Wait::Forever, false), Locked::Missing));
        let Locked::Held(first) = held(&path, Wait::No, true) else { panic!("the lock is free") };
        assert!(matches!(held(&path, Wait::No, true), Locked::Busy));
        drop(first);
        assert!(matches!(held(&path, Wait::No, false), Locked::Held(_)));
    }

    #[test]
    fn a_directory_is_locked_while_others_remove_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let lock_and_remove = || {
            for _ in 0..300 {
                let locked = lock(&path, Wait::Forever, true, || open_directory(&path)).unwrap();
                assert!(matches!(locked, Locked::Held(_)));
                fs::remove_dir(&path).unwrap();
            }
        };
        thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(lock_and_remove))));
    }

    #[test]
    fn a_waiter_of_a_removed_file_gets_a_new_one_or_none() {
        for recreate in [true, false] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("lock");
            let Locked::Held(first) = held(&path, Wait::No, true) else { panic!("the lock is free") };
            let (tell, told) = mpsc::channel();
            let waiter = thread::spawn({
                let path = path.clone();
                move || {
                    tell.send(()).unwrap();
                    matches!(held(&path, Wait::Forever, recreate), Locked::Held(_))
                }
            });
            told.recv().unwrap();
            fs::remove_file(&path).unwrap();
            drop(first);
            assert_eq!(waiter.join().unwrap(), recreate);
            assert_eq!(path.exists(), recreate);
        }
    }
}
