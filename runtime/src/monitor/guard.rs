//! The guard of a container whose layers may be incomplete.
//!
//! The kernel answers reads of missing data with zeros as soon as no process holds the group that announces them. If
//! the plugin and the monitor are killed, the kernel closes the monitor's descriptors before it kills the container. So
//! the guard, a fork of the monitor, holds the group until the container is gone. It kills the container when the
//! monitor has ended, and ends with the container. The plugin ends it when the layers are complete.

use std::{
    fs,
    io::{self, Write},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        raw::c_int,
    },
};

use confinement::{Confinement, Files, OwnCalls, calls};
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::retry_on_intr,
    process::{Pid, PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open},
    thread::CapabilitySet,
};

use crate::{
    address::DescriptorAddress,
    error::{Context, StartError},
    process::ProcessRef,
    state::{GUARD, TaskDir},
    sys::{self, Fork},
};

/// The first descriptor above standard error.
const FIRST: c_int = 3;
/// How the kernel names the descriptor of a group.
const GROUP: &str = "anon_inode:[fanotify]";

/// The guard's process.
pub(super) struct Guard(ProcessRef);

/// Takes a copy of the plugin's group.
pub(super) fn take_group(address: DescriptorAddress) -> Result<OwnedFd, StartError> {
    let take = || -> io::Result<OwnedFd> {
        let pid = i32::try_from(address.pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
        let plugin = pidfd_open(pid, PidfdFlags::empty())?;
        let group = pidfd_getfd(&plugin, address.descriptor, PidfdGetfdFlags::empty())?;
        let found = fs::read_link(format!("/proc/self/fd/{}", group.as_raw_fd()))?;
        if found.as_os_str() == GROUP { Ok(group) } else { Err(io::Error::other("it is another file")) }
    };
    Ok(take().context(|| "holding the group of incomplete layers".to_owned())?)
}

impl Guard {
    /// Starts the guard of a container.
    pub fn start(task: &TaskDir, init: &ProcessRef, group: BorrowedFd<'_>) -> Result<Self, StartError> {
        let guarding = || "starting the guard of incomplete layers".to_owned();
        let monitor = pidfd_open(getpid(), PidfdFlags::empty()).map_err(io::Error::from).context(guarding)?;
        match sys::fork().context(guarding)? {
            Fork::Child => run(init, &monitor, group),
            Fork::Parent(pid) => {
                let process = ProcessRef::open(pid.as_raw_nonzero().get()).context(guarding)?;
                task.commit(GUARD, &process.record().context(guarding)?)?;
                Ok(Self(process))
            }
        }
    }

    /// Waits for the end of the guard. The container has ended.
    pub fn await_end(self) -> io::Result<()> {
        self.0.wait_for(None)?;
        self.0.reap()
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
