//! The exit status of a process that another process has reaped.

use std::{
    io, mem,
    os::fd::{AsRawFd, BorrowedFd},
};

/// The wait status of a process after its parent has reaped it; `None` before. It needs Linux 6.15 and a descriptor
/// that was opened before the end of the process.
pub(crate) fn reaped_status(pidfd: BorrowedFd<'_>) -> io::Result<Option<i32>> {
    // SAFETY: all-zero bytes are a valid pidfd_info, because it has only numbers.
    let mut info: libc::pidfd_info = unsafe { mem::zeroed() };
    info.mask = libc::PIDFD_INFO_EXIT.into();
    // SAFETY: the request contains the size of the structure, which the kernel reads and fills.
    let result = unsafe { libc::ioctl(pidfd.as_raw_fd(), libc::PIDFD_GET_INFO as _, &raw mut info) };
    match (result, io::Error::last_os_error()) {
        (-1, error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(None),
        (-1, error) => Err(error),
        _ => Ok((info.mask & u64::from(libc::PIDFD_INFO_EXIT) != 0).then_some(info.exit_code)),
    }
}
