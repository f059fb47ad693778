//! Waiting for the processes that make a command, within the limits of the plugin's patience.

use std::{
    fs, io,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    process::{Pid, Signal, WaitOptions, kill_process, waitpid},
    time::Timespec,
};

use super::running::DYING;
use crate::process::ProcessRef;

/// A container may take this long to end while its first process is ending: the kernel ends all other processes before
/// it.
pub(super) const END_OF_CONTAINER: Duration = Duration::from_millis(200);

/// Making the command may take this long. The container can stop the command before it begins.
pub(super) const ENTERING: Duration = Duration::from_secs(30);

/// Waits until a descriptor is readable. False if the time is over or the plugin is gone.
pub(super) fn is_readable(descriptor: &OwnedFd, plugin: &OwnedFd, deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let limit = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
        // Without a wanted event, the plugin's connection only tells that it was closed.
        let mut events = [PollFd::new(descriptor, PollFlags::IN), PollFd::new(plugin, PollFlags::empty())];
        match poll(&mut events, Some(&limit)) {
            Ok(_) if !events[0].revents().is_empty() => return Ok(true),
            Ok(_) => return Ok(false),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The children of this process in the order in which they were made. The container cannot make one before the command
/// begins: the process that makes the command, and the command are the first.
pub(super) fn children() -> io::Result<Vec<Pid>> {
    let own = std::process::id();
    let children = fs::read_to_string(format!("/proc/{own}/task/{own}/children"))?;
    Ok(children.split_ascii_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect())
}

/// Kills and reaps the process that makes the command and, if there is one, the command. A stopped process ends too. A
/// process that was frozen meanwhile is left: it ends when it is thawed.
pub(super) fn end_children() -> io::Result<()> {
    let deadline = Instant::now() + DYING;
    loop {
        let children = children()?;
        for child in &children {
            kill_process(*child, Signal::KILL)?;
            let process = ProcessRef::open(child.as_raw_nonzero().get())?;
            if !process.wait_for(Some(deadline.saturating_duration_since(Instant::now())))? {
                return Ok(());
            }
            process.reap()?;
        }
        // A child may have made another one meanwhile.
        if children.is_empty() {
            return Ok(());
        }
    }
}

/// Reaps a child; its exit status, unless a signal ended it.
pub(super) fn wait_for(child: Pid) -> io::Result<Option<i32>> {
    loop {
        match waitpid(Some(child), WaitOptions::empty()) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(ended) => return Ok(ended.and_then(|(_, status)| status.exit_status())),
        }
    }
}
