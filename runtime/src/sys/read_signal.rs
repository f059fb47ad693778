//! A signal when bytes are read from a FIFO (fcntl(2), O_ASYNC).

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsRawFd, BorrowedFd, RawFd},
    ptr,
};

use rustix::{process::Signal, thread::gettid};

/// Lets the kernel send `signal` to this thread when bytes are read from a FIFO. `writer` is open for writing alone:
/// a descriptor that is also open for reading would tell of written bytes, too. The signal is blocked and waits for
/// [`take_signal`].
pub(crate) fn announce_reads(writer: BorrowedFd<'_>, signal: Signal) -> io::Result<()> {
    let set = only(signal);
    // SAFETY: the set is initialised and outlives the call.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut()) } {
        0 => {}
        error => return Err(io::Error::from_raw_os_error(error)),
    }
    let owner = Owner { kind: F_OWNER_TID, id: gettid().as_raw_nonzero().get() };
    // SAFETY: the kernel reads the owner, which outlives the call.
    check(unsafe { libc::fcntl(writer.as_raw_fd(), F_SETOWN_EX, &raw const owner) })?;
    set_number(writer.as_raw_fd(), F_SETSIG, signal.as_raw())?;
    change_flags(writer, |flags| flags | libc::O_ASYNC)
}

/// Ends what [`announce_reads`] began.
pub(crate) fn announce_no_reads(writer: BorrowedFd<'_>) -> io::Result<()> {
    change_flags(writer, |flags| flags & !libc::O_ASYNC)
}

/// Whether the signal, which is blocked, has come since the last call.
pub(crate) fn take_signal(signal: Signal) -> io::Result<bool> {
    let set = only(signal);
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: set and time are initialised and outlive the call.
    match check(unsafe { libc::sigtimedwait(&raw const set, ptr::null_mut(), &raw const now) }) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => Ok(false),
        Err(error) => Err(error),
    }
}

// Of fcntl(2). The libraries lack their names.
const F_SETSIG: i32 = 10;
const F_SETOWN_EX: i32 = 15;
const F_OWNER_TID: i32 = 0;

/// The kernel's `struct f_owner_ex`.
#[repr(C)]
struct Owner {
    kind: i32,
    id: i32,
}

fn change_flags(file: BorrowedFd<'_>, change: impl FnOnce(i32) -> i32) -> io::Result<()> {
    // SAFETY: reading the flags takes no pointer.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
    check(flags)?;
    set_number(file.as_raw_fd(), libc::F_SETFL, change(flags))
}

fn set_number(file: RawFd, command: i32, number: i32) -> io::Result<()> {
    // SAFETY: the commands that are used here take a number.
    check(unsafe { libc::fcntl(file, command, number) })
}

fn only(signal: Signal) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set, and the signal has a valid number.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal.as_raw());
        set.assume_init()
    }
}

fn check(result: i32) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
