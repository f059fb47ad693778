//! System calls that only tests make.
#![allow(unsafe_code)]

/// The serial number of this process's session keyring (keyctl(2)); -1 without one.
pub fn session_keyring() -> i64 {
    const KEYCTL_GET_KEYRING_ID: libc::c_long = 0;
    const KEY_SPEC_SESSION_KEYRING: libc::c_long = -3;
    const CREATE: libc::c_long = 0;
    // SAFETY: numbers in, a number out.
    unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, CREATE) }
}

/// Sets the user and the group with which this thread accesses files.
pub fn set_file_user(id: u32) {
    // SAFETY: numbers in, a number out. Only this thread changes.
    unsafe {
        libc::setfsgid(id);
        libc::setfsuid(id);
    }
}
