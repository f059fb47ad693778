//! How much of a container's output was dropped, kept where a driver that starts anew finds it.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

/// A count in a file: 20 digits and a newline, always written as a whole. It is as lasting as the state folder, which goes with the
/// machine's memory, so it is not synced.
#[derive(Debug)]
pub struct LostBytes {
    file: File,
    count: AtomicU64,
}

impl LostBytes {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let count = AtomicU64::new(Self::look(path)?);
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
        Ok(Self { file, count })
    }

    /// What a file says; one that is not there, or that we did not write, says nothing.
    pub(crate) fn look(path: &Path) -> io::Result<u64> {
        match fs::read_to_string(path) {
            Ok(text) => Ok(text.trim().parse().unwrap_or(0)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Counts further bytes.
    pub fn add(&self, bytes: u64) -> io::Result<()> {
        let count = self.count.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.write(count)
    }

    /// All that was counted; begins anew at zero.
    pub fn take(&self) -> io::Result<u64> {
        let count = self.count.swap(0, Ordering::Relaxed);
        self.write(0).map(|()| count)
    }

    fn write(&self, count: u64) -> io::Result<()> {
        self.file.write_all_at(format!("{count:020}\n").as_bytes(), 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_outlives_who_counted() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("lost");
        assert_eq!(LostBytes::look(&path).expect("nothing yet"), 0);
        let first = LostBytes::open(&path).expect("a file");
        first.add(7).expect("written");
        first.add(1 << 40).expect("written");
        drop(first);
        assert_eq!(LostBytes::look(&path).expect("a count"), (1 << 40) + 7);
        let second = LostBytes::open(&path).expect("a file");
        second.add(1).expect("written");
        assert_eq!(second.take().expect("written"), (1 << 40) + 8);
        assert_eq!(LostBytes::look(&path).expect("a count"), 0);
        fs::write(&path, "nonsense").expect("written");
        assert_eq!(LostBytes::look(&path).expect("no count"), 0);
    }
}
