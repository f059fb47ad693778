//! Loading a compiled seccomp filter.

use std::io;

/// Loads a filter, an array of `struct sock_filter`, for this thread and everything that it executes. It allocates
/// nothing: the command's limits apply already.
pub(crate) fn install_filter(program: &[u8]) -> io::Result<()> {
    const INSTRUCTION: usize = size_of::<libc::sock_filter>();
    let too_long = || io::Error::new(io::ErrorKind::InvalidData, "the seccomp filter is not a BPF program");
    if program.is_empty() || !program.len().is_multiple_of(INSTRUCTION) {
        return Err(too_long());
    }
    let len = u16::try_from(program.len() / INSTRUCTION).map_err(|_| too_long())?;
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut().cast() };
    // SAFETY: the program points to `len` instructions, of any alignment, that live until the call returns; the kernel
    // copies and checks them, and writes none.
    let result = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    #[test]
    fn the_kernel_accepts_the_default_filter_and_enforces_it() {
        let program = seccomp::default_program(&[]).expect("a program");
        // A filter applies to one thread.
        let filtered = std::thread::spawn(move || {
            rustix::thread::set_no_new_privs(true).expect("no_new_privileges");
            super::install_filter(&program).expect("the filter is loaded");
            let unshared = crate::sys::unshare_mounts().expect_err("refused");
            let mounted = rustix::mount::mount("none", "/nowhere", "tmpfs", rustix::mount::MountFlags::empty(), None);
            let socket = rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM, None);
            (unshared.raw_os_error(), mounted, socket.is_ok())
        });
        let (unshared, mounted, socket) = filtered.join().expect("the thread ends");
        assert_eq!(unshared, Some(libc::EPERM));
        assert_eq!(mounted, Err(Errno::PERM));
        assert!(socket);
    }
}
