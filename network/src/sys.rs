//! The only unsafe code of the crate.
#![allow(unsafe_code)]

use std::io;

use rustix::thread::UnshareFlags;

/// Moves this thread to a new network namespace.
pub(crate) fn unshare_network() -> io::Result<()> {
    // SAFETY: a network namespace does not concern memory or descriptors. Open sockets stay in their namespace.
    Ok(unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?)
}
