//! The crate's unsafe code: confining a thread to a directory.
#![allow(unsafe_code)]

use std::{io, os::fd::BorrowedFd};

use rustix::{
    fs::Mode,
    process,
    thread::{UnshareFlags, unshare_unsafe},
};

/// Gives the calling thread its own root, working directory and umask: `/` is `root` from now on and nothing outside can be
/// named. There is no way back, so the thread must be ours and end after its work. Where changing the root is not permitted
/// (no `CAP_SYS_CHROOT`), only the umask is set; what uses the thread must be safe without the new root too.
pub fn confine_thread(root: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: CLONE_FS alone unshares root, working directory and umask of this thread. No memory, descriptor or signal state
    // changes, and the caller's thread runs nothing that relies on sharing them with the process.
    unsafe { unshare_unsafe(UnshareFlags::FS) }?;
    process::umask(Mode::empty());
    process::fchdir(root)?;
    match process::chroot(".") {
        Err(rustix::io::Errno::PERM) => Ok(()),
        result => Ok(result?),
    }
}
