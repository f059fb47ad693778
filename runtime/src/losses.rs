//! How much of a container's output was dropped, kept where a driver that starts anew finds it.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
};

use rustix::fs::{FlockOperation, flock};

/// A count in a file: 20 digits and a newline, always written as a whole, under a lock because a monitor and a new driver may count
/// at once. It is as lasting as the state directory, which goes with the machine's memory, so it is not synced.
#[derive(Debug)]
pub struct LostBytes {
    file: File,
}

impl LostBytes {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        Ok(Self { file })
    }

    /// What a file says; one that is not there, or that we did not write, says nothing.
    pub(crate) fn look(path: &Path) -> io::Result<u64> {
        match fs::read(path) {
            Ok(text) => Ok(parse(&text)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Counts further bytes.
    pub fn add(&self, bytes: u64) -> io::Result<()> {
        self.replace(|count| count.saturating_add(bytes)).map(drop)
    }

    /// All that was counted; begins anew at zero.
    pub fn take(&self) -> io::Result<u64> {
        self.replace(|_| 0)
    }

    /// What was counted before.
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
    fn a_count_is_shared_by_all_who_count() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("lost");
        assert_eq!(LostBytes::look(&path).expect("nothing yet"), 0);
        let first = LostBytes::open(&path).expect("a file");
        first.add(7).expect("written");
        first.add(1 << 40).expect("written");
        assert_eq!(LostBytes::look(&path).expect("a count"), (1 << 40) + 7);
        let second = LostBytes::open(&path).expect("a file");
        second.add(1).expect("written");
        assert_eq!(first.take().expect("written"), (1 << 40) + 8);
        assert_eq!(LostBytes::look(&path).expect("a count"), 0);
        fs::write(&path, "nonsense").expect("written");
        assert_eq!(LostBytes::look(&path).expect("no count"), 0);
    }
}
