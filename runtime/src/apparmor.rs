//! AppArmor profiles: which one a command gets.

use std::{fs, io};

use crate::error::StartError;

/// What this process, or a fork of it, executes next is confined by a profile. To be called where /proc is the host's.
pub(crate) fn confine_at_exec(profile: &str) -> Result<(), StartError> {
    // The module's own file is there since Linux 5.8; the other one belongs to whichever module is the first.
    const FILES: [&str; 2] = ["/proc/thread-self/attr/apparmor/exec", "/proc/thread-self/attr/exec"];
    let mut written = fs::write(FILES[0], format!("exec {profile}"));
    if written
        .as_ref()
        .is_err_and(|error| error.kind() == io::ErrorKind::NotFound && !fs::exists(FILES[0]).unwrap_or(false))
    {
        written = fs::write(FILES[1], format!("exec {profile}"));
    }
    written.map_err(|error| {
        StartError::invalid(match error.kind() {
            io::ErrorKind::NotFound => format!("AppArmor profile {profile:?} is not loaded on this node"),
            _ => format!("AppArmor profile {profile:?}: {error}; the kernel may have been started without AppArmor"),
        })
    })
}
