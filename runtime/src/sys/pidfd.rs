//! What a pidfd tells of a process beyond its end.

use std::{
    io, mem,
    os::fd::{AsRawFd, BorrowedFd},
};

/// The wait status of a process that somebody has reaped; `None` while nobody has. Known since Linux 6.15, and only to who had
/// the descriptor open before.
pub(crate) fn reaped_status(pidfd: BorrowedFd<'_>) -> io::Result<Option<i32>> {
    // SAFETY: all-zero bytes are a valid pidfd_info, which holds numbers only.
    let mut info: libc::pidfd_info = unsafe { mem::zeroed() };
    info.mask = libc::PIDFD_INFO_EXIT.into();
    // SAFETY: the request carries the size of the structure, which the kernel reads and fills.
    let result = unsafe { libc::ioctl(pidfd.as_raw_fd(), libc::PIDFD_GET_INFO as _, &raw mut info) };
    match (result, io::Error::last_os_error()) {
        (-1, error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(None),
        (-1, error) => Err(error),
        _ => Ok((info.mask & u64::from(libc::PIDFD_INFO_EXIT) != 0).then_some(info.exit_code)),
    }
}
