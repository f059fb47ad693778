//! The crate's only unsafe code.
#![allow(unsafe_code)]

use std::{
    io, mem,
    os::fd::{AsRawFd, OwnedFd},
};

use rustix::{
    net::{AddressFamily, SocketFlags, SocketType, socket_with},
    thread::UnshareFlags,
};

/// A network namespace of this thread's own.
pub(crate) fn leave_network() -> io::Result<()> {
    // SAFETY: a network namespace concerns neither memory nor descriptors; those of sockets stay in the namespace they came from.
    Ok(unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?)
}

/// Switches `lo` on in this thread's network namespace. What CNI's loopback plugin does, without a process.
pub(crate) fn loopback_up() -> io::Result<()> {
    let socket: OwnedFd = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: all-zero bytes are a valid ifreq.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: SIOCSIFFLAGS reads the name and the flags, both set above.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
