//! The driver's only unsafe code.

#![allow(unsafe_code)]

use std::{io, os::fd::OwnedFd};

use tokio::io::{Interest, unix::AsyncFd};

/// Lets the async runtime wait for a descriptor.
pub fn watch(descriptor: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the result owns the descriptor, so the descriptor stays open and the same while it is registered.
    Ok(unsafe { AsyncFd::register_with_interest(descriptor, interest) }?)
}
