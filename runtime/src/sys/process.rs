//! Forking, executing and signals, all for processes with one thread.

use std::{
    ffi::{CStr, CString, c_char},
    fs::File,
    io,
    mem::{ManuallyDrop, MaybeUninit},
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    ptr,
};

use rustix::{
    io::fcntl_dupfd_cloexec,
    process::{Pid, Signal},
    thread::UnshareFlags,
};

use crate::end::End;

/// Which side of a fork this is.
pub(crate) enum Fork {
    Child,
    Parent(Pid),
}

/// fork(2). The caller has one thread: that holds in the roles `monitor` and `exec`, the only ones that call this.
pub(crate) fn fork() -> io::Result<Fork> {
    // SAFETY: with a single thread the child's memory is a consistent copy of ours, locks and allocator included.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        pid => Pid::from_raw(pid).map(Fork::Parent).ok_or_else(|| io::Error::other("fork returned no pid")),
    }
}

/// Ends the process at once: no destructors, no buffers.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: _exit takes any value and does not return.
    unsafe { libc::_exit(code) }
}

/// execve(2); returns only with an error.
pub(crate) fn execve(program: &CStr, args: &[CString], env: &[CString]) -> io::Error {
    let pointers = |list: &[CString]| -> Vec<*const c_char> {
        list.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
    };
    let (args, env) = (pointers(args), pointers(env));
    // SAFETY: both arrays end with a null pointer and their strings live until the call returns.
    unsafe { libc::execve(program.as_ptr(), args.as_ptr(), env.as_ptr()) };
    io::Error::last_os_error()
}

/// A mount namespace of our own.
pub(crate) fn unshare_mounts() -> io::Result<()> {
    // SAFETY: a mount namespace does not concern memory or descriptors; the working directory is the only thing that moves.
    Ok(unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }?)
}

/// Leaves the session keyring that was inherited for a new, empty one (keyctl(2)). A kernel without keys has none to leave; and where a
/// system call filter keeps us from it, as around an agent in a container, the same filter keeps our containers from all keys.
pub(crate) fn join_new_session_keyring() -> io::Result<()> {
    const KEYCTL_JOIN_SESSION_KEYRING: libc::c_long = 1;
    let anonymous = ptr::null::<c_char>();
    // SAFETY: without a name, nothing is read; only this process's credentials change.
    match unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, anonymous) } {
        -1 => match io::Error::last_os_error() {
            error if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => Ok(()),
            error => Err(error),
        },
        _ => Ok(()),
    }
}

/// A real-time signal by its number.
pub(crate) fn realtime_signal(signal: i32) -> Option<Signal> {
    if !(32..=64).contains(&signal) {
        return None;
    }
    // SAFETY: the kernel knows signals up to 64; these numbers are only ever passed to kill(2) and its relatives.
    Some(unsafe { Signal::from_raw_unchecked(signal) })
}

/// Every signal to its default action, none blocked. Past the C library, which keeps some signals to itself: whoever started
/// us may have ignored those.
pub(crate) fn default_signals() -> io::Result<()> {
    /// The kernel's `struct sigaction`, and its size of a signal set.
    type Action = [u64; 4];
    const SET_SIZE: usize = 8;
    let default: Action = [0; 4];
    for signal in (1..=64).filter(|signal| ![libc::SIGKILL, libc::SIGSTOP].contains(signal)) {
        let action = default.as_ptr();
        // SAFETY: zeroes are a complete action: the default one, no flags, an empty mask. The default runs no code of ours.
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

/// Ignores a signal from now on.
pub(crate) fn ignore_signal(signal: Signal) -> io::Result<()> {
    // SAFETY: ignoring runs no code of ours.
    if unsafe { libc::signal(signal.as_raw(), libc::SIG_IGN) } == libc::SIG_ERR {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Blocks every signal: from now on they wait for [`wait_for_any_signal`].
pub(crate) fn block_signals() -> io::Result<()> {
    let mut all = MaybeUninit::uninit();
    // SAFETY: sigfillset initialises the set before sigprocmask reads it.
    check(unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, all.as_ptr(), ptr::null_mut())
    })
}

/// Waits for a blocked signal; its number.
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

/// A child that has ended and still is a zombie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EndedChild {
    pub pid: i32,
    pub end: End,
}

/// Waits until some child has ended, and leaves it a zombie. Without `block`, `None` when there is none.
pub(crate) fn peek_ended_child(block: bool) -> io::Result<Option<EndedChild>> {
    let flags = libc::WEXITED | libc::WNOWAIT | if block { 0 } else { libc::WNOHANG };
    loop {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: the kernel fills `info`, or leaves it zeroed, which is a valid siginfo_t; its fields for a child are set
        // whenever a child was found.
        let (result, pid, status, code) = unsafe {
            let result = libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), flags);
            let info = info.assume_init_ref();
            (result, info.si_pid(), info.si_status(), info.si_code)
        };
        match result {
            0 if pid == 0 => return Ok(None),
            0 if code == libc::CLD_EXITED => return Ok(Some(EndedChild { pid, end: End::exited(status) })),
            0 => return Ok(Some(EndedChild { pid, end: End::killed(status) })),
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

/// A descriptor by its number, as a file that does not close it.
pub(crate) fn file_of(fd: RawFd) -> ManuallyDrop<File> {
    // SAFETY: the number is that of a descriptor which its owner keeps open and hands on by number only; not closing it
    // here leaves that ownership as it is.
    ManuallyDrop::new(unsafe { File::from_raw_fd(fd) })
}

/// Closes every descriptor from `first` on. Only for a process whose owned descriptors above are never used again.
pub(crate) fn close_fds_from(first: u32) -> io::Result<()> {
    close_fds(first, u32::MAX)
}

fn close_fds(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: called first thing in a role, before anything is opened, or last thing before nothing else is, or by a thread that owns
    // nothing in a table that nobody else has.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) as i32 })
}

/// Gives this thread, which must own none of its process's descriptors and use none from now on, a table of its own with standard input,
/// output and error, and a copy of one descriptor, which is returned.
pub(crate) fn leave_descriptors(but: RawFd) -> io::Result<OwnedFd> {
    const FIRST: RawFd = 3;
    // SAFETY: the caller sees to it that nothing in this thread refers to descriptors of the old table, which stays with all others.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FILES) }?;
    let kept = fcntl_dupfd_cloexec(&*file_of(but), FIRST)?;
    let number = kept.as_raw_fd();
    if number > FIRST {
        close_fds(FIRST as u32, number as u32 - 1)?;
    }
    close_fds_from(number as u32 + 1)?;
    Ok(kept)
}

/// Closes every descriptor.
pub(crate) fn close_all_fds() -> io::Result<()> {
    close_fds_from(0)
}

fn check(result: i32) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
