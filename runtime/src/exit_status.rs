//! How a process ended.

/// The end of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExitStatus {
    /// Its exit code; 128 + n when signal n ended it.
    pub exit_code: i32,
    /// The signal that ended it, or 0.
    pub signal: i32,
}

impl ExitStatus {
    /// It ended by itself.
    pub fn exited(exit_code: i32) -> Self {
        Self { exit_code, signal: 0 }
    }

    /// A signal ended it.
    pub fn killed(signal: i32) -> Self {
        Self { exit_code: 128 + signal, signal }
    }

    /// From a wait status (wait(2)).
    pub fn of_wait_status(status: i32) -> Self {
        if libc::WIFSIGNALED(status) {
            Self::killed(libc::WTERMSIG(status))
        } else {
            Self::exited(libc::WEXITSTATUS(status))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_status_is_an_exit_code_or_a_signal() {
        for (status, end) in [
            (0, ExitStatus::exited(0)),
            (37 << 8, ExitStatus::exited(37)),
            (9, ExitStatus::killed(9)),
            (0x80 | 11, ExitStatus::killed(11)),
        ] {
            assert_eq!(ExitStatus::of_wait_status(status), end);
        }
    }
}
