//! System calls that several crates need and no library offers safely.
#![allow(unsafe_code)]

use std::{
    io, mem,
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

use rustix::{
    net::{AddressFamily, SocketFlags, SocketType, socket_with},
    process::Signal,
};

/// Switches the loopback device on in the network namespace of this thread.
pub fn loopback_up() -> io::Result<()> {
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

/// Ignores a signal from now on; inherited by children and over execve(2).
pub fn ignore_signal(signal: Signal) -> io::Result<()> {
    // SAFETY: ignoring runs no code of ours.
    if unsafe { libc::signal(signal.as_raw(), libc::SIG_IGN) } == libc::SIG_ERR {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Closes the descriptors from `first` to `last`. For a process, or a thread with a descriptor table of its own, that
/// never uses its owned descriptors of that range again.
pub fn close_descriptors(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: the caller never uses a descriptor of the range again; it runs before anything is opened or after
    // everything else is done.
    if unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Sets `SO_RCVLOWAT` of a socket. See [`crate::receive_mark`].
pub(crate) fn set_receive_mark(socket: impl AsFd, bytes: u32) -> io::Result<()> {
    let value = libc::c_int::try_from(bytes).map_err(io::Error::other)?;
    let size = mem::size_of_val(&value) as libc::socklen_t;
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel reads an int of this size.
    let result =
        unsafe { libc::setsockopt(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, (&raw const value).cast(), size) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `struct fsverity_enable_arg` of linux/fsverity.h.
#[repr(C)]
struct FsVerity {
    version: u32,
    hash_algorithm: u32,
    block_size: u32,
    salt_size: u32,
    salt: u64,
    signature_size: u32,
    reserved_1: u32,
    signature: u64,
    reserved_2: [u64; 11],
}

const _: () = assert!(mem::size_of::<FsVerity>() == 128);

/// `FS_IOC_ENABLE_VERITY`: `_IOW('f', 133, struct fsverity_enable_arg)`.
const FS_IOC_ENABLE_VERITY: u32 = 0x4080_6685;
/// `FS_VERITY_HASH_ALG_SHA256`.
const SHA256: u32 = 1;
/// Bytes of a block of the hash tree. The kernel's pages have at least this size.
const VERITY_BLOCK: u32 = 4096;

/// Adds a hash tree of SHA-256 to a file that is open for reading only. See [`crate::verity`].
pub(crate) fn enable_verity(file: impl AsFd) -> io::Result<()> {
    let request = FsVerity {
        version: 1,
        hash_algorithm: SHA256,
        block_size: VERITY_BLOCK,
        salt_size: 0,
        salt: 0,
        signature_size: 0,
        reserved_1: 0,
        signature: 0,
        reserved_2: [0; 11],
    };
    // SAFETY: the kernel reads a structure of the size that is part of the number; the structure names no other memory.
    let result = unsafe { libc::ioctl(file.as_fd().as_raw_fd(), FS_IOC_ENABLE_VERITY as _, &raw const request) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Takes a lease on a file that this descriptor alone has open (fcntl(2), `F_SETLEASE`). Another open waits until the
/// descriptor is closed. The kernel announces it with a signal that is ignored.
#[cfg(test)]
pub(crate) fn take_lease(file: impl AsFd) -> io::Result<()> {
    /// `fcntl.h` of Linux.
    const F_SETSIG: libc::c_int = 10;
    let file = file.as_fd().as_raw_fd();
    for (command, value) in [(F_SETSIG, libc::SIGURG), (libc::F_SETLEASE, libc::F_WRLCK)] {
        // SAFETY: both commands take a number, and no memory.
        if unsafe { libc::fcntl(file, command, value) } == -1 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
