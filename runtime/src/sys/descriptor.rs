//! Descriptors that are known by their number only.

use std::{
    fs::File,
    io,
    mem::ManuallyDrop,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
};

use host::sys::close_descriptors;
use rustix::{io::fcntl_dupfd_cloexec, thread::UnshareFlags};

/// The file of a descriptor that belongs to another owner. Dropping it does not close the descriptor.
pub(crate) fn file_of(fd: RawFd) -> ManuallyDrop<File> {
    // SAFETY: the owner of the descriptor keeps it open and passes on its number only. This file never closes it, so
    // the ownership does not change.
    ManuallyDrop::new(unsafe { File::from_raw_fd(fd) })
}

/// Gives this thread a descriptor table of its own. The table has standard input, output and error, and a copy of the
/// descriptor `kept`, which is returned. The thread must own no descriptor of its process, and must use none
/// afterwards.
pub(crate) fn leave_descriptors(kept: RawFd) -> io::Result<OwnedFd> {
    const FIRST: RawFd = 3;
    // SAFETY: the caller guarantees that nothing in this thread refers to descriptors of the old table. All other
    // threads keep the old table.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FILES) }?;
    let copy = fcntl_dupfd_cloexec(&*file_of(kept), FIRST)?;
    let number = copy.as_raw_fd();
    if number > FIRST {
        close_descriptors(FIRST as u32, number as u32 - 1)?;
    }
    close_descriptors(number as u32 + 1, u32::MAX)?;
    Ok(copy)
}
