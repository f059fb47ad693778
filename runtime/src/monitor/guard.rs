//! The guard of a container whose layers may be incomplete.
//!
//! The kernel answers reads of missing data with zeros as soon as no process holds the group that announces them. If
//! the plugin and the monitor are killed, the kernel closes the monitor's descriptors before it kills the container. So
//! the guard, a fork of the monitor, holds the group until the container is gone. It kills the container when the
//! monitor has ended, and ends with the container. The plugin ends it when the layers are complete. The monitor closes
//! its copy then: reads of complete layers must not wait for an answer that a killed plugin owed them, and the kernel
//! lets them pass when no process holds the group any more.
//!
//! The monitor starts another guard when one was killed.

use std::{
    io::{self, Write},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        raw::c_int,
    },
    path::Path,
    time::{Duration, Instant},
};

use confinement::{Confinement, Files, OwnCalls, calls};
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::retry_on_intr,
    process::{Pid, PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open},
    thread::CapabilitySet,
};

use crate::{
    address::{DescriptorAddress, is_group},
    error::{Context, StartError},
    process::ProcessRef,
    state::{GUARD, NO_GUARD_NEEDED, TaskDir},
    sys::{self, Fork},
};

/// The system calls that the monitor needs to start another guard. The guard restricts itself once more.
pub(super) const CALLS: &[&str] = &["clone", "close_range", "fork", "set_robust_list", "set_tid_address"];
/// A guard that lived for less was killed early. After this many in a row, no other one is started.
const EARLY: Duration = Duration::from_secs(1);
const EARLY_ENDS: u32 = 10;
/// The first descriptor above standard error.
const FIRST: c_int = 3;

/// A copy of the plugin's group, and the guard.
pub(super) struct GuardedLayers {
    task: TaskDir,
    /// `None`: the layers are complete.
    group: Option<OwnedFd>,
    guard: ProcessRef,
    /// Whether the guard may still be needed.
    needed: bool,
    started: Instant,
    /// How many guards in a row were killed early.
    early_ends: u32,
}

/// Takes a copy of the plugin's group.
pub(super) fn take_group(address: DescriptorAddress) -> Result<OwnedFd, StartError> {
    let take = || -> io::Result<OwnedFd> {
        let pid = i32::try_from(address.pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
        let plugin = pidfd_open(pid, PidfdFlags::empty())?;
        let group = pidfd_getfd(&plugin, address.descriptor, PidfdGetfdFlags::empty())?;
        let found = format!("/proc/self/fd/{}", group.as_raw_fd());
        if is_group(Path::new(&found)) { Ok(group) } else { Err(io::Error::other("it is another file")) }
    };
    Ok(take().context(|| "holding the group of incomplete layers".to_owned())?)
}

impl GuardedLayers {
    /// Starts the guard of a container.
    pub fn begin(task: &TaskDir, init: &ProcessRef, group: OwnedFd) -> Result<Self, StartError> {
        let guard = start(task, init, group.as_fd())?;
        Ok(Self { task: task.clone(), group: Some(group), guard, needed: true, started: Instant::now(), early_ends: 0 })
    }

    /// The end of the guard as an awaited event, if the guard is needed.
    pub fn awaited(&self) -> Option<PollFd<'_>> {
        self.needed.then(|| PollFd::new(&self.guard.pidfd, PollFlags::IN))
    }

    /// Whether the process is the guard.
    pub fn is_guard(&self, pid: i32) -> bool {
        self.guard.pid == pid
    }

    /// Reaps a guard that has ended, and starts another one if it was killed while it was needed: its status tells.
    pub fn renew(&mut self, init: &ProcessRef) {
        if !self.needed || !self.guard.ended() {
            return;
        }
        let end = self.guard.reap_with_status().ok().flatten();
        if end.is_some_and(|end| end.terminating_signal() == Some(NO_GUARD_NEEDED)) {
            self.group = None;
        }
        // A guard that failed, and so ended by itself, says nothing about the layers: the group stays open.
        if self.group.is_none() || end.is_some_and(|end| end.exit_status().is_some()) || init.ended() {
            self.needed = false;
            return;
        }
        self.early_ends = if self.started.elapsed() < EARLY { self.early_ends + 1 } else { 0 };
        self.started = Instant::now();
        let started = match &self.group {
            Some(group) if self.early_ends < EARLY_ENDS => start(&self.task, init, group.as_fd()),
            _ => Err(StartError::internal("the ones before it ended early")),
        };
        match started {
            Ok(guard) => self.guard = guard,
            Err(error) => {
                self.needed = false;
                drop(writeln!(io::stderr(), "the guard of incomplete layers was killed and has no successor: {error}"));
            }
        }
    }

    /// Waits for the end of the guard. The container has ended.
    pub fn await_end(self) -> io::Result<()> {
        self.guard.wait_for(None)?;
        self.guard.reap()
    }
}

fn start(task: &TaskDir, init: &ProcessRef, group: BorrowedFd<'_>) -> Result<ProcessRef, StartError> {
    let guarding = || "starting the guard of incomplete layers".to_owned();
    let monitor = pidfd_open(getpid(), PidfdFlags::empty()).map_err(io::Error::from).context(guarding)?;
    match sys::fork().context(guarding)? {
        Fork::Child => run(init, &monitor, group),
        Fork::Parent(pid) => {
            let process = ProcessRef::open(pid.as_raw_nonzero().get()).context(guarding)?;
            task.commit(GUARD, &process.record().context(guarding)?)?;
            Ok(process)
        }
    }
}

/// The guard's process.
fn run(init: &ProcessRef, monitor: &OwnedFd, group: BorrowedFd<'_>) -> ! {
    let prepared = keep_only([init.pidfd.as_fd(), monitor.as_fd(), group]).and_then(|()| {
        rustix::thread::set_name(c"oci-rs:guard")?;
        let calls = OwnCalls { any: &[calls::BASE, calls::PROCESSES], checked: calls::CHECKED };
        let files = Some(Files { places: Vec::new(), tcp: false, signals: true });
        Confinement { capabilities: CapabilitySet::KILL, calls, files }.apply()
    });
    if let Err(error) = prepared {
        drop(writeln!(io::stderr(), "the guard of incomplete layers keeps rights: {error}"));
    }
    match watch(init, monitor) {
        Ok(()) => sys::exit_now(0),
        Err(error) => {
            drop(writeln!(io::stderr(), "the guard of incomplete layers: {error}"));
            sys::exit_now(1)
        }
    }
}

/// Waits for the end of the container, and ends it after the end of the monitor.
fn watch(init: &ProcessRef, monitor: &OwnedFd) -> io::Result<()> {
    let mut ends = [PollFd::new(&init.pidfd, PollFlags::IN), PollFd::new(monitor, PollFlags::IN)];
    retry_on_intr(|| poll(&mut ends, None))?;
    if ends[0].revents().is_empty() {
        init.signal(libc::SIGKILL)?;
        init.wait_for(None)?;
    }
    Ok(())
}

/// Closes all descriptors above standard error but these.
fn keep_only(kept: [BorrowedFd<'_>; 3]) -> io::Result<()> {
    let mut numbers = kept.map(|descriptor| descriptor.as_raw_fd());
    numbers.sort_unstable();
    let mut from = FIRST;
    for number in numbers {
        if from < number {
            sys::close_descriptors(from as u32, number as u32 - 1)?;
        }
        from = number + 1;
    }
    sys::close_descriptors(from as u32, u32::MAX)
}
