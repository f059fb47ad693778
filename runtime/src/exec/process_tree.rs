//! All processes of a command.
//!
//! The command leads a session. Its descendants are in that session unless they left it. Those that left are found as
//! long as their parents live, or as long as the command lives if it is their subreaper (`ExecOptions::whole_tree`).
//! All are looked up among the processes of the container's cgroup, from outside the container, where no process can
//! hide.

use std::{
    fs, io,
    path::Path,
    time::{Duration, Instant},
};

use rustix::process::{Pid, getsid};

use crate::{
    cgroup::{Cgroups, processes_in},
    process::ProcessRef,
};

/// The processes of one command.
pub(super) struct ProcessTree {
    leader: i32,
    groups: Option<Cgroups>,
}

/// A process, its parent and its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Relatives {
    pid: i32,
    parent: i32,
    session: i32,
}

/// Killed processes are waited for this long; then the next step follows anyway.
const PATIENCE: Duration = Duration::from_secs(1);

impl ProcessTree {
    /// `leader` is the command, the leader of its session. It must not be reaped as long as this is used: its pid names
    /// the session.
    pub fn new(leader: i32, groups: Option<Cgroups>) -> Self {
        Self { leader, groups }
    }

    /// The cgroup with all processes of the container.
    pub fn cgroup(&self) -> Option<&Path> {
        self.groups.as_ref()?.path_of("freezer")
    }

    /// Sends SIGHUP and SIGCONT, as the kernel does when a terminal is hung up.
    pub fn hang_up(&self) -> io::Result<()> {
        for process in self.members()? {
            process.signal(libc::SIGHUP)?;
            process.signal(libc::SIGCONT)?;
        }
        Ok(())
    }

    /// Kills all processes, the leader last. A stopped leader cannot fork. While it exists, orphans are reparented to
    /// it, if it is their subreaper.
    pub fn kill(&self) -> io::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        for process in self.members()?.iter().filter(|process| process.pid == self.leader) {
            process.signal(libc::SIGSTOP)?;
        }
        self.kill_members(deadline, |process| process.pid != self.leader)?;
        self.kill_members(deadline, |_| true)
    }

    /// Sends SIGKILL to the wanted members until a look finds none, or until the deadline: a process that hangs in the
    /// kernel must not keep the others alive.
    fn kill_members(&self, deadline: Instant, wanted: impl Fn(&ProcessRef) -> bool) -> io::Result<()> {
        loop {
            let mut members = self.members()?;
            members.retain(&wanted);
            for member in &members {
                member.signal(libc::SIGKILL)?;
            }
            for member in &members {
                member.wait_for(Some(deadline.saturating_duration_since(Instant::now())))?;
            }
            if members.is_empty() || Instant::now() >= deadline {
                return Ok(());
            }
        }
    }

    fn members(&self) -> io::Result<Vec<ProcessRef>> {
        let Some(group) = self.cgroup() else {
            return Ok(ProcessRef::open(self.leader).into_iter().filter(|leader| !leader.ended()).collect());
        };
        let mut processes = processes_in(group)?;
        let relatives: Vec<_> = processes.iter().filter_map(|process| relatives(process.pid)).collect();
        let members = members(self.leader, &relatives);
        // The processes were opened before their relatives were read, so a pid cannot mean a later process.
        processes.retain(|process| members.contains(&process.pid) && !process.ended());
        Ok(processes)
    }
}

/// The processes of the leader's session and all their descendants.
fn members(leader: i32, all: &[Relatives]) -> Vec<i32> {
    let mut found: Vec<i32> =
        all.iter().filter(|one| one.pid == leader || one.session == leader).map(|one| one.pid).collect();
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        let children = all.iter().filter(|one| one.parent == parent && !found.contains(&one.pid)).map(|one| one.pid);
        let children: Vec<_> = children.collect();
        found.extend(children);
        next += 1;
    }
    found
}

fn relatives(pid: i32) -> Option<Relatives> {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => parse_relatives(pid, &stat),
        // It has ended, or `/proc` hides it (the mount option `hidepid`). The kernel tells the session of any process,
        // and not the parent.
        Err(_) => {
            let session = getsid(Pid::from_raw(pid)).ok()?;
            Some(Relatives { pid, parent: 0, session: session.as_raw_nonzero().get() })
        }
    }
}

/// Fields 4 and 6 of `/proc/<pid>/stat`; the name in field 2 can hold spaces and parentheses.
fn parse_relatives(pid: i32, stat: &str) -> Option<Relatives> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(1);
    let parent = fields.next()?.parse().ok()?;
    let session = fields.nth(1)?.parse().ok()?;
    Some(Relatives { pid, parent, session })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_process_name_does_not_shift_the_fields() {
        let stat = "12 (x) S 1) R 7 8 9 34816 12 4194304 1";
        assert_eq!(parse_relatives(12, stat), Some(Relatives { pid: 12, parent: 7, session: 9 }));
        assert_eq!(parse_relatives(12, "12 (x"), None);
    }

    #[test]
    fn members_are_the_session_and_its_descendants_alone() {
        let process = |pid, parent, session| Relatives { pid, parent, session };
        let all = [
            process(10, 1, 10),
            process(11, 10, 10),
            process(12, 1, 10),
            process(13, 11, 13),
            process(14, 13, 13),
            process(20, 1, 20),
            process(21, 20, 20),
        ];
        let mut found = members(10, &all);
        found.sort_unstable();
        assert_eq!(found, [10, 11, 12, 13, 14]);
        assert!(members(99, &all).is_empty());
    }
}
