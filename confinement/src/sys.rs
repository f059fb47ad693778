//! The crate's unsafe code: loading a compiled filter.
#![allow(unsafe_code)]

use std::io;

/// Whether the kernel logs the system calls that a filter refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterLog {
    /// It does not.
    Nothing,
    /// It logs them, and the processes that a filter kills.
    Violations,
}

/// Loads a filter, an array of `struct sock_filter`, for this thread and everything that it executes. It allocates
/// nothing: the limits of a command apply already.
pub fn install_filter(program: &[u8], log: FilterLog) -> io::Result<()> {
    const INSTRUCTION: usize = size_of::<libc::sock_filter>();
    let no_program = || io::Error::new(io::ErrorKind::InvalidData, "the seccomp filter is not a BPF program");
    if program.is_empty() || !program.len().is_multiple_of(INSTRUCTION) {
        return Err(no_program());
    }
    let len = u16::try_from(program.len() / INSTRUCTION).map_err(|_| no_program())?;
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut().cast() };
    // Before Linux 5.16 a filter switches a speculation of the processor off, which no other thread of ours does.
    let flags = match log {
        FilterLog::Nothing => 0,
        FilterLog::Violations => libc::SECCOMP_FILTER_FLAG_LOG | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW,
    };
    // SAFETY: the program points to `len` instructions, of any alignment, that live until the call returns; the kernel
    // copies and checks them, and writes none.
    let result = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Maps a page of memory with this protection, and unmaps it.
#[cfg(test)]
pub(crate) fn map(protection: i32) -> io::Result<()> {
    const PAGE: usize = 4096;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: the kernel chooses the place, and nothing refers to the page.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, protection, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the page was mapped just now.
    if unsafe { libc::munmap(page, PAGE) } == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    #[test]
    fn the_kernel_accepts_the_default_filter_of_containers_and_enforces_it() {
        let program = seccomp::default_program(&[]).expect("a program");
        // A filter applies to one thread.
        let filtered = std::thread::spawn(move || {
            rustix::thread::set_no_new_privs(true).expect("no_new_privileges");
            super::install_filter(&program, super::FilterLog::Nothing).expect("the filter is loaded");
            let mounted = rustix::mount::mount("none", "/nowhere", "tmpfs", rustix::mount::MountFlags::empty(), None);
            let socket = rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM, None);
            (mounted, socket.is_ok())
        });
        let (mounted, socket) = filtered.join().expect("the thread ends");
        assert_eq!(mounted, Err(Errno::PERM));
        assert!(socket);
    }
}
