//! User namespaces: processes in new ones, and the ids of file system operations.

use std::{
    ffi::{c_int, c_void},
    io,
    mem::MaybeUninit,
    os::fd::{AsRawFd, OwnedFd},
    ptr::{self, NonNull},
};

use rustix::{
    io::retry_on_intr,
    mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen},
    pipe::{PipeFlags, pipe_with},
    process::{Pid, WaitOptions, waitpid},
    thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities},
};

use super::process::{Fork, clone, exit_now};

/// A process in a new user namespace. It waits, and ends when this is dropped or our process has ended.
///
/// It shares our memory: a copy of it would take longer than all else that the namespace needs. So it only makes two
/// system calls, which cannot fail, and no signal handler runs in it.
struct NamespaceHolder {
    pid: Pid,
    /// It ends when this end of its pipe is closed.
    end: Option<OwnedFd>,
    /// The memory that it uses until it has ended.
    memory: NonNull<HolderMemory>,
}

/// The size of the stack of a [`NamespaceHolder`].
const STACK: usize = 16 << 10;

/// The memory of a [`NamespaceHolder`].
#[repr(C, align(16))]
struct HolderMemory {
    stack: [u8; STACK],
    /// The reading and the writing end.
    pipe: [c_int; 2],
}

/// The function of the process of a [`NamespaceHolder`]. `memory` is its [`HolderMemory`].
extern "C" fn hold_namespace(memory: *mut c_void) -> c_int {
    let mut byte = 0_u8;
    // SAFETY: the memory and the pipe exist until this process has ended. Signals are blocked, so neither call fails:
    // a failure would change `errno` of the thread whose thread-local storage this process uses.
    unsafe {
        let [reading, writing] = (*memory.cast::<HolderMemory>()).pipe;
        libc::syscall(libc::SYS_close, writing);
        libc::syscall(libc::SYS_read, reading, &raw mut byte, 1);
    }
    0
}

impl NamespaceHolder {
    fn start() -> io::Result<Self> {
        let (reading, end) = pipe_with(PipeFlags::CLOEXEC)?;
        let pipe = [reading.as_raw_fd(), end.as_raw_fd()];
        let memory = NonNull::from(Box::leak(Box::new(HolderMemory { stack: [0; STACK], pipe })));
        let flags = libc::CLONE_NEWUSER | libc::CLONE_VM | libc::SIGCHLD;
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: the sets are initialised before they are read. The end of the stack is in the memory. The new process
        // runs a function that touches this memory only, which stays until `drop` has waited for the process. It
        // inherits a mask that blocks all signals.
        let (pid, error) = unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            let top = memory.as_ptr().cast::<u8>().add(STACK).cast();
            let pid = libc::clone(hold_namespace, top, flags, memory.as_ptr().cast());
            let error = io::Error::last_os_error();
            libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut());
            (pid, error)
        };
        match Pid::from_raw(pid.max(0)) {
            Some(pid) => Ok(Self { pid, end: Some(end), memory }),
            None => {
                // SAFETY: the memory is from a box, and there is no process that uses it.
                drop(unsafe { Box::from_raw(memory.as_ptr()) });
                Err(error)
            }
        }
    }
}

impl Drop for NamespaceHolder {
    fn drop(&mut self) {
        drop(self.end.take());
        // The only error is that there is no such child, because the kernel was told to reap all.
        retry_on_intr(|| waitpid(Some(self.pid), WaitOptions::empty())).ok();
        // SAFETY: the memory is from a box, and the process that used it has ended.
        drop(unsafe { Box::from_raw(self.memory.as_ptr()) });
    }
}

/// Calls `action` with the pid of a process in a new user namespace without mappings. The process ends afterwards.
pub(crate) fn with_user_namespace<T>(action: impl FnOnce(i32) -> io::Result<T>) -> io::Result<T> {
    let holder = NamespaceHolder::start()?;
    action(holder.pid.as_raw_nonzero().get())
}

/// Whether the kernel mounts a `/proc` in new user, PID and mount namespaces: the error with which it refuses that.
pub(crate) fn try_proc_in_user_namespace() -> io::Result<()> {
    let child = match clone(libc::CLONE_NEWUSER | libc::CLONE_NEWPID | libc::CLONE_NEWNS)? {
        Fork::Parent(child) => child,
        // Only system calls, because another thread may have held a lock of the allocator.
        Fork::Child => {
            let mount = || {
                let context = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
                fsconfig_create(&context)?;
                fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
            };
            exit_now(mount().map_or_else(rustix::io::Errno::raw_os_error, |_| 0))
        }
    };
    match retry_on_intr(|| waitpid(Some(child), WaitOptions::empty()))?.and_then(|(_, status)| status.exit_status()) {
        Some(0) => Ok(()),
        Some(error) => Err(io::Error::from_raw_os_error(error)),
        None => Err(io::Error::other("the process that tried it was killed")),
    }
}

/// Like [`fork_sibling`](super::fork_sibling), in a new user namespace without mappings. With `own_pids`, the process
/// is the first one of a new PID namespace, which belongs to that user namespace.
pub(crate) fn fork_sibling_in_user_namespace(own_pids: bool) -> io::Result<Fork> {
    clone(libc::CLONE_PARENT | libc::CLONE_NEWUSER | if own_pids { libc::CLONE_NEWPID } else { 0 })
}

/// Sets the ids with which this thread accesses files, and keeps its effective capabilities. As a side effect the
/// kernel clears the signal of the parent's death.
pub(crate) fn set_file_ids(uid: u32, gid: u32) -> io::Result<()> {
    let sets = capabilities(None)?;
    // SAFETY: both calls take any value and change the credentials of the calling thread only.
    unsafe {
        libc::setfsgid(gid);
        libc::setfsuid(uid);
    }
    // The calls return the previous id, also if they fail. -1 is no id: it changes nothing.
    // SAFETY: as above.
    let now = unsafe { (libc::setfsuid(u32::MAX), libc::setfsgid(u32::MAX)) };
    if now != (uid.cast_signed(), gid.cast_signed()) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    // The kernel removes the capabilities for files when the id changes from 0.
    let CapabilitySets { effective, permitted, inheritable } = sets;
    let effective: CapabilitySet = effective;
    Ok(set_capabilities(None, CapabilitySets { effective, permitted, inheritable })?)
}
