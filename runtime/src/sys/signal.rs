//! Signals of processes with one thread.

use std::{io, mem::MaybeUninit, ptr};

use rustix::process::Signal;

/// A real-time signal with this number (signal(7)).
pub(crate) fn realtime_signal(signal: i32) -> Option<Signal> {
    if !(32..=64).contains(&signal) {
        return None;
    }
    // SAFETY: the kernel has signals up to 64. These numbers are passed only to kill(2) and similar calls.
    Some(unsafe { Signal::from_raw_unchecked(signal) })
}

/// Sets every signal to its default action and unblocks all. It calls the kernel directly, because the C library
/// reserves some signals, and our parent process may have ignored those.
pub(crate) fn default_signals() -> io::Result<()> {
    /// The kernel's `struct sigaction`.
    type Action = [u64; 4];
    /// The size of the kernel's signal set in bytes.
    const SET_SIZE: usize = 8;
    let default: Action = [0; 4];
    for signal in (1..=64).filter(|signal| ![libc::SIGKILL, libc::SIGSTOP].contains(signal)) {
        let action = default.as_ptr();
        // SAFETY: zeroes are a complete action: the default one, no flags, an empty mask. The default action runs no
        // code of this program.
        let result =
            unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, action, ptr::null_mut::<Action>(), SET_SIZE) };
        check(result as i32)?;
    }
    let mut none = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set before sigprocmask reads it.
    check(unsafe {
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut())
    })
}

/// Blocks every signal. From now on signals wait for [`wait_for_any_signal`].
pub(crate) fn block_signals() -> io::Result<()> {
    let mut all = MaybeUninit::uninit();
    // SAFETY: sigfillset initialises the set before sigprocmask reads it.
    check(unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, all.as_ptr(), ptr::null_mut())
    })
}

/// Waits for a blocked signal and returns its number.
pub(crate) fn wait_for_any_signal() -> io::Result<i32> {
    let mut all = MaybeUninit::uninit();
    let mut signal = 0;
    // SAFETY: sigfillset initialises the set before sigwait reads it; `signal` outlives the call.
    let result = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::sigwait(all.as_ptr(), &raw mut signal)
    };
    if result == 0 { Ok(signal) } else { Err(io::Error::from_raw_os_error(result)) }
}

fn check(result: i32) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
