//! System calls in another process, as an attacker makes them who controls it.
//!
//! The process must wait in a system call that it repeats after EINTR. It goes on when the intruder is dropped.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
};

use fixtures::{
    must::Must,
    wait::{eventually, seconds},
};

use crate::sys::{Registers, Traced, landlock_version};

/// The instruction `syscall`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// The system calls in which the driver's processes wait. Each of them is repeated after EINTR. The result of another
/// system call would be lost.
const WAITING: [i64; 6] = [
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_waitid,
    libc::SYS_rt_sigtimedwait,
];
/// Behind the part of the stack that the process may use without moving the stack pointer.
const BELOW_STACK: u64 = 4096;

/// Whether this kernel has Landlock.
pub fn restricts_files() -> bool {
    landlock_version() > 0
}

/// Whether Landlock restricts signals on this kernel (version 6, Linux 6.12).
pub fn restricts_signals() -> bool {
    landlock_version() >= 6
}

/// The system call in which a process sleeps, with its arguments (proc_pid_syscall(5)).
fn current_call(pid: i32) -> io::Result<String> {
    fs::read_to_string(format!("/proc/{pid}/syscall"))
}

fn waits(pid: i32) -> bool {
    let call = current_call(pid).must("a process");
    let number = call.split_whitespace().next().and_then(|word| word.parse().ok());
    number.is_some_and(|number: i64| WAITING.contains(&number))
}

/// A process under control.
#[derive(Debug)]
pub struct Intruder {
    process: Traced,
    memory: File,
    /// The registers with which it goes on.
    original: Registers,
}

impl Intruder {
    /// Takes control of a process as soon as it waits.
    pub async fn enter(pid: i32) -> Self {
        let is_waiting = eventually(seconds(20), || waits(pid)).await;
        assert!(is_waiting, "the process {pid} does not wait: {:?}", current_call(pid));
        let process = Traced::stop(pid).must("stop the process");
        let mut original = process.registers().must("its registers");
        // The interrupted system call fails with EINTR, and the kernel does not repeat it.
        original.rax = (-i64::from(libc::EINTR)).cast_unsigned();
        original.orig_rax = u64::MAX;
        let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem")).must("its memory");
        let mut instruction = [0; 2];
        memory.read_exact_at(&mut instruction, original.rip - 2).must("its last instruction");
        assert_eq!(instruction, SYSCALL, "it does not wait in a system call");
        Self { process, memory, original }
    }

    /// Makes a system call.
    ///
    /// # Errors
    /// That of the system call.
    pub fn call(&self, number: i64, args: [u64; 4]) -> io::Result<u64> {
        let [rdi, rsi, rdx, r10] = args;
        let rip = self.original.rip - 2;
        let call = Registers { rax: number.cast_unsigned(), rip, rdi, rsi, rdx, r10, ..self.original };
        self.process.set_registers(&call).must("its registers");
        self.process.step().must("one instruction");
        let result = self.process.registers().must("its registers").rax.cast_signed();
        match u64::try_from(result) {
            Ok(value) => Ok(value),
            Err(_) => Err(io::Error::from_raw_os_error(i32::try_from(-result).must("an error"))),
        }
    }

    /// Makes a system call with a text as the argument of this index.
    ///
    /// # Errors
    /// That of the system call.
    pub fn call_with(&self, number: i64, text: &str, index: usize, mut args: [u64; 4]) -> io::Result<u64> {
        let place = self.original.rsp - BELOW_STACK;
        let text = [text.as_bytes(), &[0]].concat();
        self.memory.write_all_at(&text, place).must("write to its stack");
        args[index] = place;
        self.call(number, args)
    }

    /// Opens a file by its path.
    ///
    /// # Errors
    /// That of openat(2).
    pub fn open(&self, path: &str, flags: i32) -> io::Result<u64> {
        let directory = i64::from(libc::AT_FDCWD).cast_unsigned();
        self.call_with(libc::SYS_openat, path, 1, [directory, 0, u64::from(flags.cast_unsigned()), 0])
    }
}

impl Drop for Intruder {
    fn drop(&mut self) {
        self.process.set_registers(&self.original).must("its registers");
        self.process.release().must("let it go on");
    }
}
