//! The one commit protocol for files: temporary name in the same directory, write, sync, rename, sync of the directory.
//!
//! After a kill at any point the file is absent, complete, or still the one before; what else is left is a file with
//! the temporary name, which the next writer or the next sweep removes. [`Durability`] says whether a power cut may
//! undo a commit.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

/// Whether a commit survives a power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// It does once the call returns: file and directory are synced.
    Now,
    /// It does after the next sync of the file system. Until then a power cut may leave the file absent or torn.
    Later,
}

/// The steps of a commit, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The temporary file is there and empty.
    Write,
    /// The temporary file is complete. With [`Durability::Now`] only.
    Sync,
    /// The temporary file is about to get its final name.
    Rename,
    /// The file has its final name. With [`Durability::Now`] only.
    SyncDirectory,
}

/// A commit that failed, with the file at which it did.
#[derive(Debug)]
pub struct CommitError {
    /// "creating", "writing", "syncing" or "renaming to".
    pub action: &'static str,
    /// Whether the error is about the final name or its directory, not about the temporary file.
    pub at_target: bool,
    /// The error of the operating system.
    pub source: io::Error,
}

impl From<CommitError> for io::Error {
    fn from(error: CommitError) -> Self {
        error.source
    }
}

/// Writes `bytes` to `path`, whole or not at all, and replaces an older file. `temporary` lies in the same directory; a
/// file of that name is replaced. The file has mode 0600. `before` is called before each step: a failpoint may stand
/// there.
pub fn write(
    path: &Path,
    temporary: &Path,
    bytes: &[u8],
    durability: Durability,
    before: impl Fn(Step),
) -> Result<(), CommitError> {
    let failed = |action| move |source| CommitError { action, at_target: false, source };
    let failed_at_target = |action| move |source| CommitError { action, at_target: true, source };
    let mut file = private_file(temporary).map_err(failed("creating"))?;
    before(Step::Write);
    file.write_all(bytes).map_err(failed("writing"))?;
    if durability == Durability::Now {
        before(Step::Sync);
        file.sync_all().map_err(failed("syncing"))?;
    }
    before(Step::Rename);
    fs::rename(temporary, path).map_err(failed_at_target("renaming to"))?;
    if durability == Durability::Now {
        before(Step::SyncDirectory);
        sync_directory(path.parent().unwrap_or(Path::new("."))).map_err(failed_at_target("syncing"))?;
    }
    Ok(())
}

/// Opens an empty file that only its owner can read (mode 0600).
pub fn private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}

/// Makes the names in a directory durable.
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn a_commit_replaces_the_older_file_and_leaves_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let (path, temporary) = (directory.path().join("a"), directory.path().join("a.tmp"));
        fs::write(&temporary, "half a file of a killed writer, longer than the new one").unwrap();
        for (durability, text) in [(Durability::Now, "one"), (Durability::Later, "two")] {
            write(&path, &temporary, text.as_bytes(), durability, |_| {}).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_file_has_its_final_name_only_after_the_rename() {
        let directory = tempfile::tempdir().unwrap();
        let (path, temporary) = (directory.path().join("a"), directory.path().join("a.tmp"));
        let steps = RefCell::new(Vec::new());
        write(&path, &temporary, b"one", Durability::Now, |step| {
            assert_eq!(path.exists(), step == Step::SyncDirectory, "before {step:?}");
            steps.borrow_mut().push(step);
        })
        .unwrap();
        assert_eq!(*steps.borrow(), [Step::Write, Step::Sync, Step::Rename, Step::SyncDirectory]);
    }

    #[test]
    fn an_error_names_the_failed_action() {
        let directory = tempfile::tempdir().unwrap();
        let missing = directory.path().join("no/such");
        let error = write(&missing, &directory.path().join("no/tmp"), b"", Durability::Later, |_| {}).unwrap_err();
        assert_eq!((error.action, error.at_target), ("creating", false));
        let path = directory.path().join("a");
        fs::create_dir(&path).unwrap();
        let error = write(&path, &directory.path().join("a.tmp"), b"", Durability::Later, |_| {}).unwrap_err();
        assert_eq!((error.action, error.at_target), ("renaming to", true));
    }
}
