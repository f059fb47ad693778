//! The crate's only unsafe code: ptrace(2), and questions to the kernel.
#![allow(unsafe_code)]

use std::{io, os::fd::AsRawFd, ptr};

pub(crate) use libc::user_regs_struct as Registers;

/// A stop of a process that this thread traces. Another thread cannot use it.
#[derive(Debug)]
pub(crate) struct Traced {
    pid: i32,
}

impl Traced {
    /// Stops a process wherever it is.
    pub fn stop(pid: i32) -> io::Result<Self> {
        let traced = Self { pid };
        traced.request(libc::PTRACE_SEIZE)?;
        traced.request(libc::PTRACE_INTERRUPT)?;
        traced.wait()?;
        Ok(traced)
    }

    /// Its registers.
    pub fn registers(&self) -> io::Result<Registers> {
        // SAFETY: all-zero bytes are valid registers.
        let mut registers: Registers = unsafe { std::mem::zeroed() };
        let nothing = ptr::null_mut::<libc::c_void>();
        // SAFETY: the kernel fills the registers, which outlive the call.
        check(unsafe { libc::ptrace(libc::PTRACE_GETREGS, self.pid, nothing, &raw mut registers) })?;
        Ok(registers)
    }

    /// Replaces its registers.
    pub fn set_registers(&self, registers: &Registers) -> io::Result<()> {
        let nothing = ptr::null_mut::<libc::c_void>();
        // SAFETY: the kernel reads the registers, which outlive the call. They belong to the other process.
        check(unsafe { libc::ptrace(libc::PTRACE_SETREGS, self.pid, nothing, ptr::from_ref(registers)) })
    }

    /// Lets it execute one instruction.
    pub fn step(&self) -> io::Result<()> {
        self.request(libc::PTRACE_SINGLESTEP)?;
        self.wait()
    }

    /// Lets it go on.
    pub fn release(&self) -> io::Result<()> {
        self.request(libc::PTRACE_DETACH)
    }

    fn request(&self, request: i32) -> io::Result<()> {
        let nothing = ptr::null_mut::<libc::c_void>();
        // SAFETY: these requests take no pointers of this process.
        check(unsafe { libc::ptrace(request, self.pid, nothing, nothing) })
    }

    /// Waits until it stops.
    fn wait(&self) -> io::Result<()> {
        let mut status = 0;
        // SAFETY: the kernel writes the status, which outlives the call.
        check(unsafe { libc::waitpid(self.pid, &raw mut status, libc::__WALL) }.into())?;
        if libc::WIFSTOPPED(status) { Ok(()) } else { Err(io::Error::other(format!("it ended with {status:#x}"))) }
    }
}

/// The version of the kernel's Landlock; -1 without one.
pub(crate) fn landlock_version() -> libc::c_long {
    let (nothing, size, version) = (ptr::null::<libc::c_void>(), 0usize, 1u32);
    // SAFETY: with this flag the call reads no memory.
    unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, nothing, size, version) }
}

/// The project of a file (`struct fsxattr` of linux/fs.h).
pub(crate) fn project_of(file: &std::fs::File) -> io::Result<u32> {
    const FS_IOC_FSGETXATTR: u32 = 0x801C_581F;
    let mut attributes = [0_u32; 7];
    // SAFETY: the numbers have the size of the kernel's structure and outlive the call, which fills them.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FSGETXATTR as _, attributes.as_mut_ptr()) };
    check(result.into()).map(|()| attributes[3])
}

/// The limits of a project in KiB and in files, and what it uses in bytes and in files (`struct if_dqblk` of
/// linux/quota.h).
pub(crate) fn project_quota(file: &std::fs::File, project: u32) -> io::Result<([u64; 2], [u64; 2])> {
    const Q_GETQUOTA: u32 = 0x80_0007;
    const PROJECT: u32 = 2;
    let (mut quota, command) = ([0_u64; 9], Q_GETQUOTA << 8 | PROJECT);
    // SAFETY: the numbers have the size of the kernel's structure and outlive the call, which fills them.
    let result =
        unsafe { libc::syscall(libc::SYS_quotactl_fd, file.as_raw_fd(), command, project, quota.as_mut_ptr()) };
    check(result).map(|()| ([quota[0], quota[3]], [quota[2], quota[5]]))
}

/// The first project from this one on that the file system of a file knows, and whether it has limits
/// (`struct if_nextdqblk` of linux/quota.h).
pub(crate) fn next_project(file: &std::fs::File, first: u32) -> io::Result<Option<(u32, bool)>> {
    const Q_GETNEXTQUOTA: u32 = 0x80_0009;
    const PROJECT: u32 = 2;
    let (mut quota, command) = ([0_u64; 9], Q_GETNEXTQUOTA << 8 | PROJECT);
    // SAFETY: the numbers have the size of the kernel's structure and outlive the call, which fills them.
    let result = unsafe { libc::syscall(libc::SYS_quotactl_fd, file.as_raw_fd(), command, first, quota.as_mut_ptr()) };
    match check(result) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => Ok(None),
        found => found.map(|()| {
            // The upper half of the last number is the project.
            let number = u32::try_from(quota[8] >> 32).unwrap_or_default();
            Some((number, quota[0] > 0 || quota[3] > 0))
        }),
    }
}

/// Has reads of a file announced to a group of fanotify(7) no longer.
pub(crate) fn forget_reads(group: &std::os::fd::OwnedFd, file: &std::fs::File) -> io::Result<()> {
    const FAN_PRE_ACCESS: u64 = 0x0010_0000;
    let (group, file, nothing) = (group.as_raw_fd(), file.as_raw_fd(), ptr::null());
    // SAFETY: without a path, the call means the file of the descriptor.
    let result = unsafe { libc::fanotify_mark(group, libc::FAN_MARK_REMOVE, FAN_PRE_ACCESS, file, nothing) };
    check(result.into())
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
