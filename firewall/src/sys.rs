//! The only unsafe code of the crate.
#![allow(unsafe_code)]

use std::{io, mem, os::fd::AsRawFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// The option of a socket that tells about a table of iptables-legacy, for IPv4 and for IPv6.
const GET_INFO: libc::c_int = 64;

/// The kernel's `struct ipt_getinfo`, which for IPv6 is the same.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TableInfo {
    name: [u8; 32],
    valid_hooks: u32,
    hook_entry: [u32; 5],
    underflow: [u32; 5],
    entries: u32,
    size: u32,
}

/// Describes a table of iptables-legacy in the network namespace of this thread.
pub(crate) fn table_info(family: u8, table: &str) -> io::Result<TableInfo> {
    let level = if family == 2 { libc::IPPROTO_IP } else { libc::IPPROTO_IPV6 };
    let family = AddressFamily::from_raw(family.into());
    let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let mut info =
        TableInfo { name: [0; 32], valid_hooks: 0, hook_entry: [0; 5], underflow: [0; 5], entries: 0, size: 0 };
    info.name.iter_mut().zip(table.bytes().take(31)).for_each(|(to, from)| *to = from);
    let mut length = mem::size_of::<TableInfo>() as libc::socklen_t;
    let value = (&raw mut info).cast();
    // SAFETY: the kernel reads and writes at most `length` bytes, the size of the value, which outlives the call and
    // has no padding. Every content of its fields is valid.
    let result = unsafe { libc::getsockopt(socket.as_raw_fd(), level, GET_INFO, value, &raw mut length) };
    if result == 0 { Ok(info) } else { Err(io::Error::last_os_error()) }
}
