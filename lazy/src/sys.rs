//! The crate's unsafe code: fanotify(7), and memory that a process shares with its successor.
//!
//! No library offers the events before a read (`FAN_PRE_ACCESS`, Linux 6.14) or the answer with an error number.
#![allow(unsafe_code)]

use std::{
    fs::File,
    io, mem,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    ptr::{self, NonNull},
    sync::atomic::{AtomicU64, Ordering},
};

/// An event before a range of a file is read (`linux/fanotify.h`).
const FAN_PRE_ACCESS: u64 = 0x0010_0000;
/// Where the number of an error stands in a refusal.
const ERRNO_SHIFT: u32 = 24;

/// Bytes of one event: its fixed part (`struct fanotify_event_metadata`), and the range that is about to be read
/// (`struct fanotify_event_info_range`).
pub(crate) const EVENT: usize = 48;
/// Bytes of one slot: an event, then two words of ours.
const SLOT: usize = 64;

/// What the kernel does with a reader that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The read goes on.
    Allow,
    /// The read fails with `EIO`.
    Deny,
}

/// Makes a group whose events announce reads. The queue has no limit: the kernel lets readers pass that do not fit.
pub(crate) fn new_group() -> io::Result<OwnedFd> {
    let flags = libc::FAN_CLASS_PRE_CONTENT
        | libc::FAN_CLOEXEC
        | libc::FAN_NONBLOCK
        | libc::FAN_UNLIMITED_QUEUE
        | libc::FAN_UNLIMITED_MARKS;
    let event_flags = (libc::O_RDWR | libc::O_CLOEXEC | libc::O_LARGEFILE) as libc::c_uint;
    // SAFETY: the call takes no pointers.
    let group = unsafe { libc::fanotify_init(flags, event_flags) };
    if group == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this descriptor, so nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(group) })
}

/// Announces reads of a file from now on, or no longer. Descriptors and mounts of the file that were opened before are
/// never announced.
pub(crate) fn mark(group: BorrowedFd<'_>, file: BorrowedFd<'_>, announced: bool) -> io::Result<()> {
    let flags = if announced { libc::FAN_MARK_ADD } else { libc::FAN_MARK_REMOVE };
    // SAFETY: without a path, the call means the file of the descriptor.
    let result =
        unsafe { libc::fanotify_mark(group.as_raw_fd(), flags, FAN_PRE_ACCESS, file.as_raw_fd(), ptr::null()) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Answers the event with this number. `Ok(false)`: none is waiting.
pub(crate) fn answer(group: BorrowedFd<'_>, number: RawFd, verdict: Verdict) -> io::Result<bool> {
    let response = match verdict {
        Verdict::Allow => libc::FAN_ALLOW,
        Verdict::Deny => libc::FAN_DENY | (libc::EIO as u32) << ERRNO_SHIFT,
    };
    let answer = libc::fanotify_response { fd: number, response };
    let size = mem::size_of_val(&answer);
    // SAFETY: the pointer and the size are those of `answer`, which lives until the call has returned.
    let written = unsafe { libc::write(group.as_raw_fd(), (&raw const answer).cast(), size) };
    if written >= 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::ENOENT) { Ok(false) } else { Err(error) }
}

/// The descriptor of an event that this process has read.
pub(crate) fn event_descriptor(number: RawFd) -> OwnedFd {
    // SAFETY: the kernel made this descriptor for the event, which the caller has just read. Each event is read once,
    // so nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(number) }
}

/// A file as memory, in slots of one event each. The kernel writes events into it, so that an event that this process
/// has read is known to its successor, however this process ends.
#[derive(Debug)]
pub(crate) struct SharedSlots {
    memory: NonNull<u8>,
    count: usize,
}

// SAFETY: the memory is mapped as long as the value lives, and each access is one atomic operation or a copy by the
// kernel into a slot that only one thread uses.
unsafe impl Send for SharedSlots {}
// SAFETY: as above; a slot is changed through shared references by atomic operations.
unsafe impl Sync for SharedSlots {}

impl SharedSlots {
    /// Bytes of a file with so many slots.
    pub(crate) fn size(count: usize) -> usize {
        count * SLOT
    }

    /// Maps a file of the size of `count` slots. No process may shorten it.
    pub(crate) fn map(file: &File, count: usize) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses changes no memory that is in use.
        let address = unsafe {
            libc::mmap(ptr::null_mut(), Self::size(count), protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { memory, count })
    }

    /// Reads one event into an empty slot. `Ok(false)`: there is none.
    pub(crate) fn read(&self, slot: usize, group: BorrowedFd<'_>) -> io::Result<bool> {
        let memory = self.at(slot, 0);
        // SAFETY: the slot has space for one event, it is mapped, and no other thread uses an empty slot. Two events do
        // not fit, so the kernel returns one.
        let count = unsafe { libc::read(group.as_raw_fd(), memory.as_ptr().cast(), EVENT) };
        if count >= 0 {
            return Ok(count > 0);
        }
        let error = io::Error::last_os_error();
        if error.kind() == io::ErrorKind::WouldBlock { Ok(false) } else { Err(error) }
    }

    /// The event in a slot. Its first word is 0 if there is none.
    pub(crate) fn event(&self, slot: usize) -> [u8; EVENT] {
        let mut event = [0; EVENT];
        for (at, bytes) in event.chunks_exact_mut(8).enumerate() {
            bytes.copy_from_slice(&self.word(slot, at).load(Ordering::Acquire).to_ne_bytes());
        }
        event
    }

    /// The file of the event in a slot, as [`SharedSlots::set_file`] noted it; zeros if it did not yet.
    pub(crate) fn file(&self, slot: usize) -> (u64, u64) {
        (self.word(slot, 6).load(Ordering::Acquire), self.word(slot, 7).load(Ordering::Acquire))
    }

    /// Notes the file of the event in a slot. The inode is written last: it says that both words are there.
    pub(crate) fn set_file(&self, slot: usize, (device, inode): (u64, u64)) {
        self.word(slot, 6).store(device, Ordering::Release);
        self.word(slot, 7).store(inode, Ordering::Release);
    }

    /// Empties a slot. The event's length is written last: it says that the slot is in use.
    pub(crate) fn clear(&self, slot: usize) {
        for word in [7, 6, 0] {
            self.word(slot, word).store(0, Ordering::Release);
        }
    }

    fn word(&self, slot: usize, word: usize) -> &AtomicU64 {
        // SAFETY: the slot is mapped and aligned, lives as long as `self`, and all accesses to it are atomic or of the
        // kernel.
        unsafe { self.at(slot, word * 8).cast::<AtomicU64>().as_ref() }
    }

    fn at(&self, slot: usize, offset: usize) -> NonNull<u8> {
        assert!(slot < self.count && offset < SLOT, "slot {slot} of {}", self.count);
        // SAFETY: the offset is inside the mapping, which `assert!` has checked.
        unsafe { self.memory.add(slot * SLOT + offset) }
    }
}

impl Drop for SharedSlots {
    fn drop(&mut self) {
        // SAFETY: the mapping is that of `map`, and no reference to it outlives `self`.
        if unsafe { libc::munmap(self.memory.as_ptr().cast(), Self::size(self.count)) } == -1 {
            tracing::debug!(error = %io::Error::last_os_error(), "memory of events stays mapped");
        }
    }
}

/// A descriptor that wakes a thread that polls.
pub(crate) fn wake(descriptor: impl AsFd) {
    // A full counter wakes as well.
    if let Err(error) = rustix::io::write(descriptor, &1u64.to_ne_bytes()) {
        tracing::trace!(%error, "a thread has many reasons to wake already");
    }
}
