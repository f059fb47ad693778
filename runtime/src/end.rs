//! How a process ended, and what is written down of a container whose first process it was.

use std::time::SystemTime;

use crate::{
    cgroup::{Groups, LimitHits},
    state::ExitRecord,
};

/// The end of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct End {
    /// Its exit code; 128 + n when signal n ended it.
    pub exit_code: i32,
    /// The signal that ended it, or 0.
    pub signal: i32,
}

impl End {
    /// It ended by itself.
    pub fn exited(exit_code: i32) -> Self {
        Self { exit_code, signal: 0 }
    }

    /// A signal ended it.
    pub fn killed(signal: i32) -> Self {
        Self { exit_code: 128 + signal, signal }
    }

    /// From a wait status, as wait(2) has it.
    pub fn of_status(status: i32) -> Self {
        if libc::WIFSIGNALED(status) {
            Self::killed(libc::WTERMSIG(status))
        } else {
            Self::exited(libc::WEXITSTATUS(status))
        }
    }

    /// The record of a container that ended like this just now: what its groups counted since `before` belongs to it.
    pub fn record(self, groups: Option<&Groups>, before: LimitHits, started_at: SystemTime) -> ExitRecord {
        let hits = groups.map(Groups::hits).unwrap_or_default().since(before);
        let out_of_memory =
            groups.filter(|_| hits.oom_kills > 0).map(|groups| groups.out_of_memory(hits.oom_kills, started_at));
        ExitRecord {
            exit_code: self.exit_code,
            signal: self.signal,
            oom_killed: hits.oom_kills > 0,
            out_of_memory,
            forks_refused: hits.forks_refused,
            started_at,
            finished_at: SystemTime::now(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_statuses() {
        for (status, end) in
            [(0, End::exited(0)), (37 << 8, End::exited(37)), (9, End::killed(9)), (0x80 | 11, End::killed(11))]
        {
            assert_eq!(End::of_status(status), end);
        }
    }
}
