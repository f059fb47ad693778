//! The crate's only unsafe code.
#![allow(unsafe_code)]

use std::io;

use rustix::thread::UnshareFlags;

/// A network namespace of this thread's own.
pub(crate) fn leave_network() -> io::Result<()> {
    // SAFETY: a network namespace concerns neither memory nor descriptors; those of sockets stay in the namespace they came from.
    Ok(unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?)
}
