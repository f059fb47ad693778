//! The driver's only unsafe code.

#![allow(unsafe_code)]

use std::{io, mem, os::fd::OwnedFd};

use tokio::io::{Interest, unix::AsyncFd};

/// Lets the async runtime wait for a descriptor.
pub fn watch(descriptor: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the result owns the descriptor, so the descriptor stays open and the same while it is registered.
    Ok(unsafe { AsyncFd::register_with_interest(descriptor, interest) }?)
}

/// Whether the kernel's clock follows a time server (adjtimex(2)); `None` if the kernel does not say.
pub fn clock_is_synchronized() -> Option<bool> {
    // SAFETY: every field is a number, for which zero is valid. With `modes` zero the call only reads the clock.
    let state = unsafe {
        let mut clock: libc::timex = mem::zeroed();
        (libc::adjtimex(&raw mut clock) != -1).then_some(clock.status)
    };
    state.map(|status| status & libc::STA_UNSYNC == 0)
}
