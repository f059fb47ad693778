//! Keeping one FIFO without a reader from staying full.

use std::{fs::File, io, os::fd::AsFd};

use super::{
    dropped::DroppedBytes,
    fifo::{discard, is_full, waiting_bytes},
};

/// The outcome of one step of a [`FifoDrainer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drained {
    /// The FIFO is empty: the next step is due when it is readable.
    Empty,
    /// The FIFO has content that fits: it is kept for the next reader. The kernel does not tell when a FIFO becomes
    /// full, so the next step is due after a while.
    Kept,
    /// The content was discarded and counted: the next step is due at once.
    Discarded,
}

/// Decides when the content of a FIFO is discarded: not before the FIFO was full once, because until then the container
/// can write on and the content waits for the next reader. Afterwards always.
#[derive(Debug)]
pub struct FifoDrainer {
    null: File,
    was_full: bool,
}

impl FifoDrainer {
    /// Discards nothing yet.
    pub fn new() -> io::Result<Self> {
        Ok(Self { null: File::options().write(true).open("/dev/null")?, was_full: false })
    }

    /// Discards the content of the FIFO if that is due, and counts it in `dropped`. `before_first` is called once,
    /// before the first bytes are discarded. Does not block.
    pub fn step(
        &mut self,
        fifo: impl AsFd,
        dropped: &DroppedBytes,
        before_first: impl FnOnce(),
    ) -> io::Result<Drained> {
        if waiting_bytes(&fifo)? == 0 {
            return Ok(Drained::Empty);
        }
        if !self.was_full {
            if !is_full(&fifo)? {
                return Ok(Drained::Kept);
            }
            before_first();
            self.was_full = true;
        }
        dropped.add(discard(&fifo, &self.null)?)?;
        Ok(Drained::Discarded)
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, fs, io::Write, os::unix::fs::OpenOptionsExt};

    use super::*;

    #[test]
    fn content_that_fits_is_kept_until_the_fifo_was_full_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
        let nonblock = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let mut held = fs::OpenOptions::new().read(true).write(true).custom_flags(nonblock).open(&path).unwrap();
        let dropped = DroppedBytes::open(&directory.path().join("lost")).unwrap();
        let announced = Cell::new(0);
        let announce = || announced.set(announced.get() + 1);
        let mut drainer = FifoDrainer::new().unwrap();
        assert_eq!(drainer.step(&held, &dropped, announce).unwrap(), Drained::Empty);
        held.write_all(b"few").unwrap();
        assert_eq!(drainer.step(&held, &dropped, announce).unwrap(), Drained::Kept);
        let mut total = 3;
        while let Ok(count) = held.write(&[7; 4096]) {
            total += count;
        }
        assert_eq!(announced.get(), 0);
        assert_eq!(drainer.step(&held, &dropped, announce).unwrap(), Drained::Discarded);
        assert_eq!(drainer.step(&held, &dropped, announce).unwrap(), Drained::Empty);
        held.write_all(b"few").unwrap();
        assert_eq!(drainer.step(&held, &dropped, announce).unwrap(), Drained::Discarded);
        assert_eq!(announced.get(), 1);
        assert_eq!(dropped.take().unwrap(), total as u64 + 3);
    }
}
