//! The guard of a container whose layers may be incomplete.
//!
//! The kernel answers reads of missing data with zeros as soon as no process holds the group that announces them. If
//! the plugin and the monitor are killed, the kernel closes the monitor's descriptors before it kills the container. So
//! the guard, a fork of the monitor, holds the group until the container is gone. It kills the container when the
//! monitor has ended, and ends with the container. The plugin ends it when the layers are complete.
//!
//! If plugin, monitor and guard are killed at once, the monitor can be the last of them. So the kernel holds the group
//! some milliseconds longer than the monitor ([`LayerGroup`]).

use std::{
    io::{self, Write},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        raw::c_int,
    },
    path::Path,
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
    packets,
    process::ProcessRef,
    state::{GUARD, TaskDir},
    sys::{self, Fork},
};

/// The first descriptor above standard error.
const FIRST: c_int = 3;

/// The guard's process.
pub(super) struct Guard(ProcessRef);

/// A copy of the plugin's group.
pub(super) struct LayerGroup {
    group: OwnedFd,
    /// A socket whose queue holds the group and the socket itself. No process closes the last descriptor of such a
    /// socket: the kernel's collector of unreachable sockets does, in a thread of the kernel and after a timer's tick.
    /// By then the kernel has sent the parent-death signal of this process.
    _unreachable: OwnedFd,
}

impl AsFd for LayerGroup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.group.as_fd()
    }
}

impl LayerGroup {
    /// Takes a copy of the plugin's group.
    pub fn take(address: DescriptorAddress) -> Result<Self, StartError> {
        let taken = copy_group(address).and_then(|group| {
            let (sender, unreachable) = packets::connection()?;
            packets::send(sender, &(), &[unreachable.as_fd(), group.as_fd()])?;
            Ok(Self { group, _unreachable: unreachable })
        });
        Ok(taken.context(|| "holding the group of incomplete layers".to_owned())?)
    }
}

fn copy_group(address: DescriptorAddress) -> io::Result<OwnedFd> {
    let pid = i32::try_from(address.pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    let plugin = pidfd_open(pid, PidfdFlags::empty())?;
    let group = pidfd_getfd(&plugin, address.descriptor, PidfdGetfdFlags::empty())?;
    let found = format!("/proc/self/fd/{}", group.as_raw_fd());
    if is_group(Path::new(&found)) { Ok(group) } else { Err(io::Error::other("it is another file")) }
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
