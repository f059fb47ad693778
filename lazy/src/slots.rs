//! The events that were read and not answered, in a file that outlives the process.
//!
//! The kernel matches an answer by the number of the event's descriptor, and a reader whose event was read by a dead
//! process waits until that number is answered. So each event is read directly into shared memory: the kernel
//! writes it there before the event counts as read. Its file is noted right afterwards.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::OpenOptionsExt,
    },
    path::Path,
};

pub(crate) use host::lock::Wait;
use host::lock::{self, Locked};

use crate::{
    error::{LazyError, at},
    event::{self, Announced},
    sys::SharedSlots,
};

/// Reads that may wait at the same time. Further ones wait in the kernel's queue. Each needs a descriptor.
pub(crate) const SLOTS: usize = 256;

/// A file, by device and inode.
pub type FileId = (u64, u64);

/// An event that a predecessor read and may not have answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) slot: usize,
    pub(crate) event: Announced,
    /// `None`: the process ended before it noted the file.
    pub(crate) file: Option<FileId>,
}

/// The slots.
#[derive(Debug)]
pub(crate) struct Slots {
    memory: SharedSlots,
    free: Vec<usize>,
    /// Its lock says that a process serves.
    _file: File,
}

impl Slots {
    /// Opens or makes the file. One process at a time has it.
    pub(crate) fn open(path: &Path, wait: Wait) -> Result<Self, LazyError> {
        let options = || File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
        let file = match lock::lock(path, wait, true, options).map_err(at("locking", path))? {
            Locked::Held(file) => file,
            Locked::Busy | Locked::Missing => return Err(LazyError::Served { path: path.to_owned() }),
        };
        let size = SharedSlots::size(SLOTS) as u64;
        if file.metadata().map_err(at("reading", path))?.len() != size {
            // Written, not only lengthened: a full disk must not be met through the memory.
            file.set_len(0).map_err(at("emptying", path))?;
            rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, size)
                .map_err(io::Error::from)
                .map_err(at("allocating", path))?;
        }
        let memory = SharedSlots::map(&file, SLOTS).map_err(at("mapping", path))?;
        Ok(Self { memory, free: Vec::new(), _file: file })
    }

    /// What a predecessor left. Empties all other slots.
    pub(crate) fn left(&mut self) -> Vec<Left> {
        let mut left = Vec::new();
        for slot in 0..SLOTS {
            match event::decode(&self.memory.event(slot)) {
                Some(event) => {
                    let file = Some(self.memory.file(slot)).filter(|(_, inode)| *inode != 0);
                    left.push(Left { slot, event, file });
                }
                None => self.free(slot),
            }
        }
        left
    }

    /// Forgets what others left: no event of this group was read.
    pub(crate) fn clear(&mut self) {
        (0..SLOTS).for_each(|slot| self.free(slot));
    }

    /// Whether all slots are in use.
    pub(crate) fn are_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Reads one event. `Ok(None)`: there is none.
    pub(crate) fn read(&mut self, group: BorrowedFd<'_>) -> io::Result<Option<(usize, Announced)>> {
        let Some(slot) = self.free.last().copied() else { return Ok(None) };
        if !self.memory.read(slot, group.as_fd())? {
            return Ok(None);
        }
        let Some(event) = event::decode(&self.memory.event(slot)) else {
            let problem = "the kernel's events have another version than this build reads";
            return Err(io::Error::new(io::ErrorKind::Unsupported, problem));
        };
        self.free.pop();
        Ok(Some((slot, event)))
    }

    /// Notes the file of an event.
    pub(crate) fn set_file(&self, slot: usize, file: FileId) {
        self.memory.set_file(slot, file);
    }

    /// Empties a slot whose event was answered.
    pub(crate) fn free(&mut self, slot: usize) {
        self.memory.clear(slot);
        self.free.push(slot);
    }
}
