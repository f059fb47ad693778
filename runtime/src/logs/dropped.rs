//! The count of bytes of a container's output that were dropped and not yet reported.
//!
//! The count is in a file of the task's directory, so that a plugin that starts later finds it.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
};

use rustix::fs::{FlockOperation, flock};

/// A count in a file: 20 digits and a newline, always written as a whole. Each change is made under flock(2), because a
/// monitor and a new plugin may count at the same time. The file is not synced: the state directory is in memory.
#[derive(Debug)]
pub struct DroppedBytes {
    file: File,
}

impl DroppedBytes {
    /// Opens the file and creates it if it is missing.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        Ok(Self { file })
    }

    /// The count in a file. It is 0 if the file is missing or is not a count.
    pub(crate) fn peek(path: &Path) -> io::Result<u64> {
        match fs::read(path) {
            Ok(text) => Ok(parse(&text)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Adds to the count.
    pub fn add(&self, bytes: u64) -> io::Result<()> {
        self.replace(|count| count.saturating_add(bytes)).map(drop)
    }

    /// Takes from the count, down to 0.
    pub fn subtract(&self, bytes: u64) -> io::Result<()> {
        self.replace(|count| count.saturating_sub(bytes)).map(drop)
    }

    /// Sets the count to 0; its value before.
    pub fn take(&self) -> io::Result<u64> {
        self.replace(|_| 0)
    }

    /// Changes the count under the lock; its value before.
    fn replace(&self, next: impl FnOnce(u64) -> u64) -> io::Result<u64> {
        flock(&self.file, FlockOperation::LockExclusive)?;
        let replaced = self.read().and_then(|count| {
            self.file.write_all_at(format!("{:020}\n", next(count)).as_bytes(), 0)?;
            Ok(count)
        });
        flock(&self.file, FlockOperation::Unlock)?;
        replaced
    }

    fn read(&self) -> io::Result<u64> {
        let mut text = [0; 21];
        let length = self.file.read_at(&mut text, 0)?;
        Ok(parse(text.get(..length).unwrap_or_default()))
    }
}

fn parse(text: &[u8]) -> u64 {
    std::str::from_utf8(text).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_opened_file_shares_one_count() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("lost");
        assert_eq!(DroppedBytes::peek(&path).expect("nothing yet"), 0);
        let first = DroppedBytes::open(&path).expect("a file");
        first.add(7).expect("written");
        first.add(1 << 40).expect("written");
        assert_eq!(DroppedBytes::peek(&path).expect("a count"), (1 << 40) + 7);
        let second = DroppedBytes::open(&path).expect("a file");
        second.add(1).expect("written");
        first.subtract(1).expect("written");
        assert_eq!(first.take().expect("written"), (1 << 40) + 7);
        first.subtract(1).expect("written");
        assert_eq!(DroppedBytes::peek(&path).expect("a count"), 0);
        fs::write(&path, "nonsense").expect("written");
        assert_eq!(DroppedBytes::peek(&path).expect("no count"), 0);
    }
}
