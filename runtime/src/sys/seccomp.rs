//! Loading a compiled system call filter.

use std::io;

/// Loads a filter, an array of `struct sock_filter`, for this process and what it executes.
pub(crate) fn install_filter(program: &[u8]) -> io::Result<()> {
    const INSTRUCTION: usize = size_of::<libc::sock_filter>();
    let too_long = || io::Error::new(io::ErrorKind::InvalidData, "the seccomp filter is not a BPF program");
    if program.is_empty() || !program.len().is_multiple_of(INSTRUCTION) {
        return Err(too_long());
    }
    let mut instructions: Vec<libc::sock_filter> = program
        .chunks_exact(INSTRUCTION)
        .map(|bytes| libc::sock_filter {
            code: u16::from_ne_bytes([bytes[0], bytes[1]]),
            jt: bytes[2],
            jf: bytes[3],
            k: u32::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
        })
        .collect();
    let len = u16::try_from(instructions.len()).map_err(|_| too_long())?;
    let program = libc::sock_fprog { len, filter: instructions.as_mut_ptr() };
    // SAFETY: the program points to `len` instructions that live until the call returns; the kernel copies and checks them.
    let result = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
