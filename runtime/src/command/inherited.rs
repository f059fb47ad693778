//! Attributes that a process sets for itself and that its forks and their commands inherit.

use std::{fs, io};

use crate::error::StartError;

/// Sets the oom_score_adj of this process. Lowering it takes a capability that we may lack.
pub(crate) fn apply_oom_score(score: i32) -> Result<(), StartError> {
    const FILE: &str = "/proc/self/oom_score_adj";
    match fs::write(FILE, score.to_string()) {
        // A plan that asks for no protection keeps the score of this process.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && score >= 0 => Ok(()),
        Err(error) => Err(StartError::invalid(format!(
            "oom_score_adj {score}: {error}; a score below the driver's own needs CAP_SYS_RESOURCE"
        ))),
        Ok(()) => Ok(()),
    }
}

/// Confines the next execve(2) of this process or of a fork of it by an AppArmor profile. `/proc` must be the host's.
pub(crate) fn apply_apparmor(profile: &str) -> Result<(), StartError> {
    // The first file exists since Linux 5.8. The second one belongs to the first security module that is loaded.
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
