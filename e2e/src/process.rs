//! Processes of this machine: finding them, signalling them, waiting for their end.

use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open},
};

use crate::{Context, Failure, Outcome, watch::patient};

/// Runs a program.
///
/// # Errors
/// When it cannot be executed or does not succeed. The text has the standard error of the program.
pub fn succeed(command: &mut Command) -> Outcome {
    let output = command.output().context(format!("{command:?}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(Failure(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim())))
}

/// A process, as `/proc` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// The pid on the host.
    pub pid: i32,
    /// The pid in the innermost pid namespace.
    pub inner_pid: i32,
    /// The number of pid namespaces below the host's; 0 is the host's.
    pub depth: usize,
    /// The command line, with spaces between the arguments.
    pub command: String,
    /// The path of the executable.
    pub exe: String,
}

/// All processes for which `wanted` returns true. Processes that end meanwhile are left out.
pub fn find(mut wanted: impl FnMut(&Process) -> bool) -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(read).filter(|process| wanted(process)).collect()
}

/// The processes of an allocation's tasks: their environment contains the allocation's id.
#[must_use]
pub fn of_alloc(alloc: &str) -> Vec<Process> {
    find(|process| alloc_of(process.pid).is_some_and(|id| id == alloc))
}

/// The first process of each container, with its allocation's id.
#[must_use]
pub fn containers() -> Vec<(String, Process)> {
    let inits = find(|process| process.inner_pid == 1 && process.depth > 0);
    inits.into_iter().filter_map(|init| Some((alloc_of(init.pid)?, init))).collect()
}

/// The allocation id in a process's environment.
#[must_use]
pub fn alloc_of(pid: i32) -> Option<String> {
    variable(pid, "NOMAD_ALLOC_ID=")
}

/// The task name in a process's environment.
#[must_use]
pub fn task_of(pid: i32) -> Option<String> {
    variable(pid, "NOMAD_TASK_NAME=")
}

fn variable(pid: i32, name: &str) -> Option<String> {
    let environ = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let value = environ.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(name.as_bytes()))?;
    Some(String::from_utf8_lossy(value).into_owned())
}

/// The processes that run `file`. Instances of the plugin that will end soon are included; a caller polls.
#[must_use]
pub fn running(file: &Path) -> Vec<Process> {
    find(|process| Path::new(&process.exe) == file)
}

/// Sends a signal. A process that has ended already is no error.
pub fn signal(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        // The only possible error is that the process has ended.
        kill_process(pid, signal).ok();
    }
}

/// Waits until a process has ended. Returns `false` when it still runs after `limit`.
///
/// # Errors
/// When the kernel refuses to open the process.
pub fn wait_gone(pid: i32, limit: Duration) -> Outcome<bool> {
    let Some(pid) = Pid::from_raw(pid) else {
        return Ok(true);
    };
    let fd = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(fd) => fd,
        Err(rustix::io::Errno::SRCH) => return Ok(true),
        Err(error) => return Err(error.into()),
    };
    let deadline = Instant::now() + patient(limit);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left)?;
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => {}
            ready => return Ok(ready.context("poll")? > 0),
        }
    }
}

fn read(pid: i32) -> Option<Process> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    if field("State:")?.trim_start().starts_with(['Z', 'X']) {
        return None;
    }
    let pids: Vec<i32> = field("NSpid:")?.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
    let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let command = String::from_utf8_lossy(&command).replace('\0', " ").trim().to_owned();
    let exe = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let exe = exe.to_string_lossy().into_owned();
    Some(Process { pid, inner_pid: *pids.last()?, depth: pids.len() - 1, command, exe })
}
