//! System calls of the plugin role, and the only unsafe code of the crate.

#![allow(unsafe_code)]

use std::{io, os::fd::OwnedFd};

use tokio::io::{Interest, unix::AsyncFd};

/// Closes every descriptor above standard error that the process inherited.
///
/// An agent leaks descriptors into its plugins, its listening sockets among them; a plugin that outlives the agent would keep
/// the port taken. Must run before this process has opened anything of its own.
pub fn close_inherited_descriptors() -> io::Result<()> {
    host::sys::close_descriptors(3, u32::MAX)
}

/// Ignores SIGINT: a Ctrl-C in the agent's terminal reaches the whole process group, and the agent decides what it means.
pub fn ignore_interrupt() -> io::Result<()> {
    host::sys::ignore_signal(rustix::process::Signal::INT)
}

/// Lets the async runtime wait for a descriptor.
pub fn watch(descriptor: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the result owns the descriptor, which therefore stays open and the same for as long as it is registered.
    Ok(unsafe { AsyncFd::register_with_interest(descriptor, interest) }?)
}
