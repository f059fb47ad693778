//! Looking a program up in `PATH`, and the errors of execve(2) as text.

use std::{io, path::Path};

use crate::error::{StartError, StartErrorKind};

/// The default `PATH` of a command.
pub(super) const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The files that a program's name can mean, in the order in which a shell tries them.
pub(super) fn candidates(program: &str, path: &str) -> Vec<String> {
    if program.contains('/') {
        return vec![program.to_owned()];
    }
    if program.is_empty() {
        return Vec::new();
    }
    path.split(':')
        .map(|directory| format!("{}/{program}", if directory.is_empty() { "." } else { directory }))
        .collect()
}

/// The error of a program that does not exist.
pub(super) fn not_found(program: &str, path: &str) -> StartError {
    let place = if program.contains('/') { "in the image".to_owned() } else { format!("in the image's PATH ({path})") };
    StartError::new(StartErrorKind::CommandNotFound, format!("command {program:?} not found {place}"))
}

/// The error of a program that exists and cannot be executed.
pub(super) fn not_executable(program: &str, file: &str, error: &io::Error) -> StartError {
    let reason = match error.raw_os_error() {
        Some(libc::ENOENT) => {
            "the file is there, but the interpreter or dynamic loader that it names is not".to_owned()
        }
        Some(libc::ENOEXEC) => "not a program for this machine, and not a script that begins with #!".to_owned(),
        Some(libc::EACCES) => {
            "permission denied: a directory, not marked as executable, or on a noexec mount".to_owned()
        }
        _ => error.to_string(),
    };
    let at = if program == file { String::new() } else { format!(" ({file})") };
    StartError::new(
        StartErrorKind::CommandNotExecutable,
        format!("command {program:?}{at} cannot be executed: {reason}"),
    )
}

/// Whether the error of execve(2) says that `candidate` does not exist. A missing interpreter gives the same error
/// number.
pub(super) fn is_missing(candidate: &str, error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) && !Path::new(candidate).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_looked_up_as_a_shell_does() {
        assert_eq!(candidates("sh", "/a:/b"), ["/a/sh", "/b/sh"]);
        assert_eq!(candidates("sh", "/a:"), ["/a/sh", "./sh"]);
        assert_eq!(candidates("./run", "/a"), ["./run"]);
        assert!(candidates("", "/a").is_empty());
    }
}
