//! System calls as the kernel takes them, also those that no library offers, and a child process for each attempt.
#![allow(unsafe_code)]

use std::{
    ffi::{CStr, c_long},
    fs::File,
    io::Read,
    os::fd::FromRawFd,
};

use crate::attempt::{Refusal, Tried};

/// An argument of a system call.
pub enum Arg<'a> {
    /// A number, a flag or a descriptor.
    Number(i64),
    /// A pointer to a text or to a structure. The kernel may write to it.
    Memory(&'a [u8]),
}

macro_rules! numbers {
    ($($kind:ty),*) => {
        $(impl From<$kind> for Arg<'_> {
            fn from(number: $kind) -> Self {
                Self::Number(number as i64)
            }
        })*
    };
}

numbers!(i32, u32, i64, u64, usize);

impl<'a> From<&'a CStr> for Arg<'a> {
    fn from(text: &'a CStr) -> Self {
        Self::Memory(text.to_bytes_with_nul())
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Arg<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        Self::Memory(bytes)
    }
}

/// Makes a system call: `call!(number, arguments…)`.
macro_rules! call {
    ($number:expr $(, $argument:expr)* $(,)?) => {
        $crate::sys::make($number, &[$($crate::sys::Arg::from($argument)),*])
    };
}
pub(crate) use call;

/// Makes a system call.
///
/// # Errors
/// With the errno.
pub fn make(number: c_long, arguments: &[Arg<'_>]) -> Tried {
    // The kernel writes to some structures, so it gets copies that may change.
    let mut copies: Vec<Vec<u8>> = arguments
        .iter()
        .map(|argument| match argument {
            Arg::Number(_) => Vec::new(),
            Arg::Memory(bytes) => bytes.to_vec(),
        })
        .collect();
    let mut words = [0_i64; 6];
    for ((word, argument), copy) in words.iter_mut().zip(arguments).zip(&mut copies) {
        *word = match argument {
            Arg::Number(number) => *number,
            Arg::Memory(_) => copy.as_mut_ptr() as i64,
        };
    }
    let [a, b, c, d, e, f] = words;
    // SAFETY: pointers lead to the copies above, which live until the call returns. The callers pass structures of the
    // size that the call expects, and no call that changes the memory of this process.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if result < 0 { Err(Refusal::last()) } else { Ok(result) }
}

/// Reads an answer that a socket already has.
///
/// # Errors
/// With the errno; EAGAIN if there is none.
pub fn receive(socket: i64, answer: &mut [u8]) -> Tried {
    // SAFETY: the kernel writes at most the buffer's length.
    let length = unsafe { libc::recv(socket as i32, answer.as_mut_ptr().cast(), answer.len(), libc::MSG_DONTWAIT) };
    if length < 0 { Err(Refusal::last()) } else { Ok(length as i64) }
}

/// Makes a system call of i386: `int 0x80`. Memory must be of [`low`].
///
/// # Errors
/// With the errno.
#[cfg(target_arch = "x86_64")]
pub fn call32(number: u32, arguments: [u32; 5]) -> Tried {
    let [first, second, third, fourth, fifth] = arguments.map(u64::from);
    let mut result = i64::from(number);
    // SAFETY: the kernel saves all registers except rax, and on older kernels r8 to r11. rbx belongs to the compiler,
    // so it is exchanged. Pointers are of `low`, which is never unmapped.
    unsafe {
        std::arch::asm!(
            "xchg {first}, rbx",
            "int 0x80",
            "xchg {first}, rbx",
            first = inout(reg) first => _,
            inout("rax") result,
            in("rcx") second,
            in("rdx") third,
            in("rsi") fourth,
            in("rdi") fifth,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        );
    }
    let result = result as i32;
    if (-4095..0).contains(&result) { Err(Refusal::Errno(-result)) } else { Ok(i64::from(result)) }
}

/// The same on other machines: there is none.
///
/// # Errors
/// Always.
#[cfg(not(target_arch = "x86_64"))]
pub fn call32(_: u32, _: [u32; 5]) -> Tried {
    Err(Refusal::Errno(libc::ENOSYS))
}

/// A copy of the bytes at an address that i386 can name.
///
/// # Errors
/// With the errno of mmap.
#[cfg(target_arch = "x86_64")]
pub fn low(bytes: &[u8]) -> Result<u32, Refusal> {
    assert!(bytes.len() <= 4096, "more than a page");
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT;
    // SAFETY: a new mapping of one page, which is large enough for the bytes and is never unmapped.
    unsafe {
        let page = libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0);
        if page == libc::MAP_FAILED {
            return Err(Refusal::last());
        }
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), page.cast(), bytes.len());
        Ok(page as u32)
    }
}

/// The same on other machines, where no call takes it.
///
/// # Errors
/// Never.
#[cfg(not(target_arch = "x86_64"))]
pub fn low(_: &[u8]) -> Result<u32, Refusal> {
    Ok(0)
}

/// Makes the attempt in a child process, which ends after `seconds`. Returns the text of its result.
pub fn in_child(seconds: u32, attempt: impl FnOnce() -> String) -> String {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return "no pipe".to_owned();
    }
    // SAFETY: this process has only one thread, so the child may do everything.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: plain calls. The child ends here and runs no destructor of its parent.
        unsafe {
            libc::alarm(seconds);
            let text = attempt();
            libc::write(ends[1], text.as_ptr().cast(), text.len());
            libc::_exit(0);
        }
    }
    // SAFETY: both descriptors are new and belong to nothing else.
    let (mut reader, writer) = unsafe { (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1])) };
    drop(writer);
    let mut text = String::new();
    let read = reader.read_to_string(&mut text);
    let mut status = 0;
    // SAFETY: a pointer to a local number.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    match read {
        Ok(length) if length > 0 => text,
        _ if waited == child && libc::WIFSIGNALED(status) => format!("signal {}", libc::WTERMSIG(status)),
        _ => "no result".to_owned(),
    }
}

/// Takes mounts apart from those of the container: what an attempt of a privileged one mounts ends with it.
pub fn leave_mount_namespace() {
    // SAFETY: constants, and texts that live as long as the program. A failure is that of the attempts after it.
    unsafe {
        libc::unshare(libc::CLONE_NEWNS);
        let (none, root) = (c"none".as_ptr(), c"/".as_ptr());
        libc::mount(none, root, std::ptr::null(), libc::MS_REC | libc::MS_PRIVATE, std::ptr::null());
    }
}

/// Whether this process is root.
#[must_use]
pub fn is_root() -> bool {
    // SAFETY: it has no arguments and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Whether this process has effective capabilities.
#[must_use]
pub fn has_capabilities() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective.is_some_and(|set| set.trim().chars().any(|digit| digit != '0'))
}

const SHARED: i32 = libc::IPC_CREAT | 0o666;

/// Makes System V shared memory with this key.
///
/// # Errors
/// With the errno.
pub fn shared_memory(key: i64) -> Tried {
    call!(libc::SYS_shmget, key, 4096, SHARED)
}

/// Removes it.
pub fn remove_shared_memory(key: i64) {
    call!(libc::SYS_shmget, key, 0, 0).and_then(|id| call!(libc::SYS_shmctl, id, libc::IPC_RMID, 0)).ok();
}

/// Makes a POSIX message queue with this name, without a slash as the kernel takes it.
///
/// # Errors
/// With the errno.
pub fn queue(name: &str) -> Tried {
    let name = std::ffi::CString::new(name).unwrap_or_default();
    call!(libc::SYS_mq_open, &*name, libc::O_RDONLY | libc::O_CREAT | libc::O_CLOEXEC, 0o666, 0)
}

/// Removes it.
pub fn remove_queue(name: &str) {
    let name = std::ffi::CString::new(name).unwrap_or_default();
    call!(libc::SYS_mq_unlink, &*name).ok();
}
