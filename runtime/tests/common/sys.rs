//! System calls that only tests make.
#![allow(unsafe_code)]

use std::os::fd::{FromRawFd, OwnedFd};

/// A group of fanotify(7) that announces nothing.
pub fn fanotify_group() -> OwnedFd {
    // SAFETY: numbers in, a number out.
    let group = unsafe { libc::fanotify_init(libc::FAN_CLASS_NOTIF | libc::FAN_CLOEXEC, 0) };
    assert!(group >= 0, "fanotify_init: {}", std::io::Error::last_os_error());
    // SAFETY: the kernel has just returned this descriptor, so nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(group) }
}

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
