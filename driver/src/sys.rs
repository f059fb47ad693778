//! The driver's only unsafe code.

#![allow(unsafe_code)]

use std::{io, os::fd::OwnedFd};

use tokio::io::{Interest, unix::AsyncFd};

/// Closes every descriptor above standard error that the process inherited.
///
/// An agent leaks descriptors into its plugins, its listening sockets among them; a plugin that outlives the agent would keep
/// the port taken. Must run before this process has opened anything of its own.
pub fn close_inherited_descriptors() -> io::Result<()> {
    // SAFETY: called first thing in `main` of the plugin role, when no Rust object owns a descriptor above 2.
    let result = unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Ignores SIGINT: a Ctrl-C in the agent's terminal reaches the whole process group, and the agent decides what it means.
pub fn ignore_interrupt() -> io::Result<()> {
    // SAFETY: SIG_IGN installs no handler, so no code of ours runs in signal context.
    let result = unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
    if result == libc::SIG_ERR { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Lets the async runtime wait for a descriptor.
pub fn watch(descriptor: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the result owns the descriptor, which therefore stays open and the same for as long as it is registered.
    Ok(unsafe { AsyncFd::register_with_interest(descriptor, interest) }?)
}
