//! References to processes that cannot come to mean another process.
//!
//! The kernel reuses pids. So a record has the pid, the start time and the boot of the process. To use a record, a
//! pidfd is opened first and start time and boot are compared afterwards; from then on the pidfd refers to that process
//! only.

use std::{
    fs, io,
    os::fd::{AsFd, OwnedFd},
    time::{Duration, Instant},
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, eventfd, poll},
    io::Errno,
    process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus, pidfd_open, pidfd_send_signal, waitid},
    time::Timespec,
};
use serde::{Deserialize, Serialize};

use crate::{exit_status::ExitStatus, sys};

/// A process, held by a pidfd.
#[derive(Debug)]
pub struct ProcessRef {
    /// Its id in our pid namespace.
    pub pid: i32,
    /// When it started, in clock ticks since boot (`/proc/<pid>/stat`, field 22).
    pub start_time: u64,
    /// Readable as soon as the process has ended.
    pub pidfd: OwnedFd,
}

/// A process in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessRecord {
    pub pid: i32,
    pub start_time: u64,
    pub boot_id: String,
}

impl ProcessRef {
    /// The process that has this pid now; `NotFound` if there is none, or if only its session or process group is left.
    pub fn open(pid: i32) -> io::Result<Self> {
        // First the pidfd: the time is then that of the same process, or of none.
        let process = Self::without_start_time(pid)?;
        Ok(Self { start_time: start_time(pid)?, ..process })
    }

    /// The same, to wait for it and to signal it. It needs no `/proc`, which can hide processes (`hidepid`), and has no
    /// record.
    pub fn without_start_time(pid: i32) -> io::Result<Self> {
        let id = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
        // INVAL: the process is gone, and its pid is still the number of its session or process group.
        let pidfd = pidfd_open(id, PidfdFlags::empty())
            .map_err(|error| if error == Errno::INVAL { Errno::SRCH } else { error })
            .map_err(not_found)?;
        Ok(Self { pid, start_time: 0, pidfd })
    }

    /// The process of a record, if it still runs.
    pub(crate) fn find(record: &ProcessRecord) -> io::Result<Option<Self>> {
        if record.boot_id != host::boot::id()? {
            return Ok(None);
        }
        match Self::open(record.pid) {
            Ok(found) if found.start_time == record.start_time => Ok(Some(found).filter(|p| !p.ended())),
            Ok(_) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A process that has ended and been reaped, by its record. Its descriptor is always readable, and signals have no
    /// effect.
    pub(crate) fn gone(record: &ProcessRecord) -> io::Result<Self> {
        let pidfd = eventfd(1, EventfdFlags::CLOEXEC)?;
        Ok(Self { pid: record.pid, start_time: record.start_time, pidfd })
    }

    /// The record by which [`ProcessRef::find`] finds the process.
    pub(crate) fn record(&self) -> io::Result<ProcessRecord> {
        Ok(ProcessRecord { pid: self.pid, start_time: self.start_time, boot_id: host::boot::id()? })
    }

    /// Whether the process has ended.
    pub fn ended(&self) -> bool {
        self.wait_for(Some(Duration::ZERO)).unwrap_or(false)
    }

    /// Waits until the process has ended or the time is over; whether it has ended.
    pub fn wait_for(&self, limit: Option<Duration>) -> io::Result<bool> {
        self.poll(PollFlags::IN, limit)
    }

    fn poll(&self, events: PollFlags, limit: Option<Duration>) -> io::Result<bool> {
        let deadline = limit.map(|limit| Instant::now() + limit);
        loop {
            let left = deadline
                .map(|deadline| Timespec::try_from(deadline.saturating_duration_since(Instant::now())))
                .transpose()
                .map_err(|_| io::ErrorKind::InvalidInput)?;
            match poll(&mut [PollFd::new(&self.pidfd, events)], left.as_ref()) {
                Ok(count) => return Ok(count > 0),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// How the process ended. The kernel tells this to processes other than the parent, too: through `/proc` until the
    /// process is reaped, and afterwards, since Linux 6.15, through a pidfd that was open before. `None` if the process
    /// has not ended, or if the kernel does not tell.
    pub(crate) fn end(&self) -> io::Result<Option<ExitStatus>> {
        if !self.ended() {
            return Ok(None);
        }
        if let Some(status) = self.zombie_status()? {
            return Ok(Some(ExitStatus::of_wait_status(status)));
        }
        let status = match sys::reaped_status(self.pidfd.as_fd()) {
            // An older kernel, or a process that had been reaped before (`gone`).
            Err(_) => None,
            Ok(Some(status)) => Some(status),
            // The process is being reaped. The pidfd then reports a hang-up.
            Ok(None) => {
                self.poll(PollFlags::empty(), Some(REAPING))?;
                sys::reaped_status(self.pidfd.as_fd())?
            }
        };
        Ok(status.map(ExitStatus::of_wait_status))
    }

    /// The wait status of a process that has ended and has not been reaped.
    fn zombie_status(&self) -> io::Result<Option<i32>> {
        // Without the right to read it, the status reads as 0 (proc_pid_stat(5)). The same right is needed to read this
        // link.
        if fs::read_link(format!("/proc/{}/ns/user", self.pid)).is_err() {
            return Ok(None);
        }
        match read_stat(self.pid) {
            Ok(stat) => Ok(parse_zombie(&stat, self.start_time)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends a signal; a process that has ended is no error.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        let signal = signal_from(signal)?;
        match pidfd_send_signal(&self.pidfd, signal) {
            // BADF: the process had been reaped before (`gone`).
            Err(Errno::SRCH | Errno::BADF) => Ok(()),
            other => Ok(other?),
        }
    }

    /// Reaps the process if it is an ended child of this process.
    pub fn reap(&self) -> io::Result<()> {
        self.reap_with_status().map(drop)
    }

    /// The same, and tells how the process ended. `None`: it was reaped before, or is no ended child of this process.
    pub(crate) fn reap_with_status(&self) -> io::Result<Option<WaitIdStatus>> {
        match waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {
            // BADF: the process had been reaped before (`gone`).
            Err(Errno::CHILD | Errno::BADF) => Ok(None),
            status => Ok(status?),
        }
    }
}

/// A signal by its number; real-time signals included.
pub(crate) fn signal_from(signal: i32) -> io::Result<Signal> {
    Signal::from_named_raw(signal)
        .or_else(|| sys::realtime_signal(signal))
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, format!("{signal} is not a signal")))
}

/// The parent may take this long to reap the process.
const REAPING: Duration = Duration::from_secs(1);

fn read_stat(pid: i32) -> io::Result<String> {
    fs::read_to_string(format!("/proc/{pid}/stat")).map_err(not_found)
}

fn start_time(pid: i32) -> io::Result<u64> {
    parse_start_time(&read_stat(pid)?)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "unreadable /proc/<pid>/stat"))
}

/// A field of `/proc/<pid>/stat` from the third on, by its number; the name in field 2 can hold spaces and parentheses.
fn stat_field(stat: &str, number: usize) -> Option<&str> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_ascii_whitespace().nth(number.checked_sub(3)?)
}

fn parse_start_time(stat: &str) -> Option<u64> {
    stat_field(stat, 22)?.parse().ok()
}

/// The wait status in the `/proc/<pid>/stat` of a zombie that was started then.
fn parse_zombie(stat: &str, start_time: u64) -> Option<i32> {
    let is_it = stat_field(stat, 3)? == "Z" && parse_start_time(stat)? == start_time;
    if is_it { stat_field(stat, 52)?.parse().ok() } else { None }
}

fn not_found<E: Into<io::Error>>(error: E) -> io::Error {
    let error: io::Error = error.into();
    match error.raw_os_error() {
        Some(libc::ESRCH | libc::ENOENT) => io::ErrorKind::NotFound.into(),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_time_is_found_behind_a_hostile_name() {
        let stat = "7 (a) b) 1 2) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 424242 1 2 3";
        assert_eq!(parse_start_time(stat), Some(424_242));
        assert_eq!(parse_start_time("7 (x"), None);
    }

    #[test]
    fn a_status_is_a_zombies_own() {
        let tail = "30 0 ".repeat(14);
        let stat =
            |state: char| format!("7 (a) b) {state} 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 424242 {tail}17 9472");
        assert_eq!(parse_zombie(&stat('Z'), 424_242), Some(9472));
        assert_eq!(parse_zombie(&stat('Z'), 424_243), None, "another process");
        assert_eq!(parse_zombie(&stat('S'), 424_242), None, "it lives");
        assert_eq!(parse_zombie("7 (x) Z 1 2", 424_242), None);
    }

    /// By `/proc` before it is reaped, by the kernel's memory of it afterwards.
    #[test]
    fn the_end_of_a_process_is_told_before_and_after_it_is_reaped() {
        for (script, expected) in [("exit 37", ExitStatus::exited(37)), ("kill -TERM $$", ExitStatus::killed(15))] {
            let mut child = std::process::Command::new("sh").args(["-c", script]).spawn().expect("a child");
            let process = ProcessRef::open(child.id() as i32).expect("the child");
            assert!(process.wait_for(Some(Duration::from_secs(10))).expect("a poll"));
            assert_eq!(process.end().expect("a look"), Some(expected), "{script}");
            child.wait().expect("reaped");
            let told = process.end().expect("a look");
            match sys::reaped_status(process.pidfd.as_fd()) {
                Ok(_) => assert_eq!(told, Some(expected), "{script}"),
                // A kernel before 6.15 has forgotten.
                Err(_) => assert_eq!(told, None),
            }
        }
        let me = ProcessRef::open(std::process::id() as i32).expect("our own process");
        assert_eq!(me.end().expect("a look"), None);
        let gone = ProcessRef::gone(&me.record().expect("a record")).expect("an event");
        assert_eq!(gone.end().expect("a look"), None, "it had been reaped before");
    }

    #[test]
    fn a_record_finds_its_process_and_no_other() {
        let me = ProcessRef::open(std::process::id() as i32).expect("our own process");
        let record = me.record().expect("a record");
        assert!(ProcessRef::find(&record).expect("a look-up").is_some());
        let other_time = ProcessRecord { start_time: record.start_time + 1, ..record.clone() };
        assert!(ProcessRef::find(&other_time).expect("a look-up").is_none());
        let other_boot = ProcessRecord { boot_id: "another".to_owned(), ..record };
        assert!(ProcessRef::find(&other_boot).expect("a look-up").is_none());
    }

    #[test]
    fn a_number_that_only_a_session_has_is_no_process() {
        use std::io::{BufRead, BufReader};
        // The leader of a new session ends, another process stays in it.
        let mut command = std::process::Command::new("setsid");
        command.args(["sh", "-c", "sleep 5 & echo $$"]).stdout(std::process::Stdio::piped());
        let Ok(mut child) = command.spawn() else { return };
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
        child.wait().expect("reaped");
        let leader: i32 = line.trim().parse().expect("a number");
        let in_session = |pid: i32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit_once(')').is_some_and(|(_, rest)| rest.split_whitespace().nth(3) == Some(line.trim()))
        };
        let pids = fs::read_dir("/proc").expect("processes").flatten();
        let left: Vec<i32> =
            pids.filter_map(|one| one.file_name().to_str()?.parse().ok()).filter(|pid| in_session(*pid)).collect();
        let error = ProcessRef::open(leader).map(drop).expect_err("gone");
        for pid in &left {
            ProcessRef::open(*pid).and_then(|process| process.signal(libc::SIGKILL)).expect("killed");
        }
        assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
        assert_eq!(left.len(), 1);
    }

    #[test]
    fn an_ended_child_is_not_found_even_as_a_zombie() {
        let mut child = std::process::Command::new("true").spawn().expect("a child");
        let process = ProcessRef::open(child.id() as i32).expect("the child");
        let record = process.record().expect("a record");
        assert!(process.wait_for(Some(Duration::from_secs(10))).expect("a poll"));
        assert!(ProcessRef::find(&record).expect("a look-up").is_none());
        process.signal(libc::SIGKILL).expect("no error for an ended process");
        child.wait().expect("reaped");
    }
}
