//! The crate's unsafe code: confining a thread to a directory.
#![allow(unsafe_code)]

use std::{io, os::fd::BorrowedFd};

use rustix::{
    fs::Mode,
    process,
    thread::{UnshareFlags, unshare_unsafe},
};

/// Gives the calling thread its own root, working directory and umask: `/` is `root` from now on, and no path leads
/// outside. This cannot be undone, so the thread must be one of ours and end after its work. Without `CAP_SYS_CHROOT`
/// only the umask is set, so the code on this thread must be safe without the new root too.
pub fn confine_thread(root: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: CLONE_FS alone unshares root, working directory and umask of this thread. No memory, descriptor or signal
    // state changes, and the code of this thread does not rely on sharing them with the process.
    unsafe { unshare_unsafe(UnshareFlags::FS) }?;
    process::umask(Mode::empty());
    process::fchdir(root)?;
    match process::chroot(".") {
        Err(rustix::io::Errno::PERM) => Ok(()),
        result => Ok(result?),
    }
}
