//! The crate's only unsafe code: ptrace(2), and a question to the kernel.
#![allow(unsafe_code)]

use std::{io, ptr};

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

fn check(result: libc::c_long) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
