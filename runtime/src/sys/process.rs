//! Forking, executing and waiting, for processes with one thread.

use std::{
    ffi::{CStr, CString, c_char},
    fs::{self, File},
    io,
    mem::MaybeUninit,
    os::{fd::AsFd, unix::process::CommandExt},
    process::Command,
    ptr, slice,
};

use rustix::{
    process::{Pid, Signal, set_parent_process_death_signal},
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space},
};

use crate::exit_status::ExitStatus;

/// The side of a fork on which the caller is.
pub(crate) enum Fork {
    Child,
    Parent(Pid),
}

/// fork(2). The caller must have one thread. Only the roles `monitor` and `exec` call this, and both have one.
pub(crate) fn fork() -> io::Result<Fork> {
    // SAFETY: the process has a single thread, so the child's memory is a consistent copy, including locks and the
    // allocator.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        pid => Pid::from_raw(pid).map(Fork::Parent).ok_or_else(|| io::Error::other("fork returned no pid")),
    }
}

/// Forks a sibling: the new process is a child of our parent (CLONE_PARENT). It is a member of the PID namespace that
/// was joined last. The caller must have one thread.
pub(crate) fn fork_sibling() -> io::Result<Fork> {
    clone(libc::CLONE_PARENT)
}

/// Forks with flags of clone(2) that do not share memory. The caller must have one thread, or the child must only make
/// system calls.
pub(super) fn clone(flags: libc::c_int) -> io::Result<Fork> {
    let flags = libc::c_long::from(flags | libc::SIGCHLD);
    // SAFETY: without a new stack and without shared memory this is fork(2). The process has a single thread, so the
    // child's memory is a consistent copy; otherwise the child uses no lock. The C library's cached thread id is wrong
    // in the child, and the child never uses it.
    match unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        pid => Pid::from_raw(pid as i32).map(Fork::Parent).ok_or_else(|| io::Error::other("clone returned no pid")),
    }
}

/// Ends the process at once. No destructor runs, and no buffer is flushed.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: _exit takes any value and does not return.
    unsafe { libc::_exit(code) }
}

/// execve(2). Returns only if it fails.
pub(crate) fn execve(program: &CStr, args: &[CString], env: &[CString]) -> io::Error {
    let pointers = |list: &[CString]| -> Vec<*const c_char> {
        list.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
    };
    let (args, env) = (pointers(args), pointers(env));
    // SAFETY: both arrays end with a null pointer, and their strings live until the call returns.
    unsafe { libc::execve(program.as_ptr(), args.as_ptr(), env.as_ptr()) };
    io::Error::last_os_error()
}

/// Replaces the command line of this process, as other processes see it in `/proc`, by arguments that are separated by
/// NUL. The text is cut to the length of the command line with which the process was executed; if it is shorter, NULs
/// follow it. The process must not read its arguments any more.
pub(crate) fn replace_command_line(text: &[u8]) -> io::Result<()> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let (start, end) = argument_area(&stat).ok_or(io::ErrorKind::InvalidData)?;
    // SAFETY: the kernel copied the arguments to this part of the stack, which stays mapped and writable. The process
    // has one thread, which holds no reference to its arguments.
    let area = unsafe { slice::from_raw_parts_mut(ptr::with_exposed_provenance_mut::<u8>(start), end - start) };
    area.fill(0);
    // The last byte stays NUL: otherwise the kernel takes the environment for a part of the command line.
    let length = text.len().min(area.len().saturating_sub(1));
    area[..length].copy_from_slice(&text[..length]);
    Ok(())
}

/// The addresses of begin and end of the arguments, from `/proc/<pid>/stat` (fields 48 and 49 of proc_pid_stat(5)).
fn argument_area(stat: &str) -> Option<(usize, usize)> {
    // The second field, the name, may contain spaces and parentheses.
    let mut fields = stat.rsplit_once(") ")?.1.split_ascii_whitespace().skip(48 - 3);
    let (start, end) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    (start != 0 && start < end).then_some((start, end))
}

/// Lets the kernel kill the process of a command when the thread that starts it ends.
pub(crate) fn end_with_parent(command: &mut Command) {
    let end = || Ok(set_parent_process_death_signal(Some(Signal::KILL))?);
    // SAFETY: the closure makes one system call, which is allowed between fork and execve.
    unsafe { command.pre_exec(end) };
}

/// Moves this thread to a new mount namespace, a copy of the current one.
pub(crate) fn unshare_mounts() -> io::Result<()> {
    // SAFETY: a mount namespace does not concern memory or descriptors. Only the root and the working directory move.
    Ok(unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }?)
}

/// Makes the next fork of this process the first process of a new PID namespace. Further forks would be in that
/// namespace too: before them, the process calls [`rejoin_own_pids`].
pub(crate) fn unshare_children_pids() -> io::Result<()> {
    // SAFETY: the namespace of future children does not concern memory or descriptors.
    Ok(unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWPID) }?)
}

/// Makes further forks of this process members of its own PID namespace again.
pub(crate) fn rejoin_own_pids() -> io::Result<()> {
    let own = File::open("/proc/self/ns/pid")?;
    Ok(move_into_link_name_space(own.as_fd(), Some(LinkNameSpaceType::ProcessID))?)
}

/// Replaces the inherited session keyring by a new, empty one (keyctl(2)). Two errors are no problem: a kernel without
/// keyrings (ENOSYS), and a seccomp filter around the agent that forbids the call (EPERM), because the same filter then
/// keeps our containers from all keys.
pub(crate) fn join_new_session_keyring() -> io::Result<()> {
    const KEYCTL_JOIN_SESSION_KEYRING: libc::c_long = 1;
    let anonymous = ptr::null::<c_char>();
    // SAFETY: without a name the call reads no memory. Only the credentials of this process change.
    match unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, anonymous) } {
        -1 => match io::Error::last_os_error() {
            error if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => Ok(()),
            error => Err(error),
        },
        _ => Ok(()),
    }
}

/// A child that has ended and is still a zombie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EndedChild {
    pub pid: i32,
    pub end: ExitStatus,
}

/// Waits until a child has ended, and leaves it a zombie. Without `block` it returns `None` if no child has ended.
pub(crate) fn peek_ended_child(block: bool) -> io::Result<Option<EndedChild>> {
    let flags = libc::WEXITED | libc::WNOWAIT | if block { 0 } else { libc::WNOHANG };
    loop {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: the kernel fills `info` or leaves it zeroed, and zeroes are a valid siginfo_t. The kernel sets the
        // fields of a child whenever it found one.
        let (result, pid, status, code) = unsafe {
            let result = libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), flags);
            let info = info.assume_init_ref();
            (result, info.si_pid(), info.si_status(), info.si_code)
        };
        match result {
            0 if pid == 0 => return Ok(None),
            0 if code == libc::CLD_EXITED => return Ok(Some(EndedChild { pid, end: ExitStatus::exited(status) })),
            0 => return Ok(Some(EndedChild { pid, end: ExitStatus::killed(status) })),
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_found_in_stat() {
        let numbers = |fields: &[usize]| fields.iter().map(usize::to_string).collect::<Vec<_>>().join(" ");
        // Field 4 and those after it have their own number as value.
        let fields: Vec<usize> = (4..=52).collect();
        let stat = format!("1 (a) b (c) S {}\n", numbers(&fields));
        assert_eq!(argument_area(&stat), Some((48, 49)));
        for wrong in ["", "1 (a) S 1 2", "1 (a) S"] {
            assert_eq!(argument_area(wrong), None, "{wrong:?}");
        }
        assert_eq!(argument_area(&format!("1 (a) S {}", numbers(&[0; 49]))), None, "a process of another user");
    }
}
