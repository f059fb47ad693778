//! Watching a running command: waiting for its end, and ending it if the plugin orders that.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    process::{WaitId, WaitIdOptions, waitid},
    time::Timespec,
};

use super::{process_tree::ProcessTree, protocol::HelperOrder, request::ExecExit, sandboxed::SandboxedCommand};
use crate::{cgroup::Cgroups, packets::receive, process::ProcessRef};

/// A command that got SIGHUP may take this long to end by itself.
const PATIENCE: Duration = Duration::from_millis(500);

/// A killed process may take this long to end. On cgroups v1 a frozen process ends only when it is thawed.
pub(super) const DYING: Duration = Duration::from_secs(2);

/// A running command, a child of this process.
pub(super) struct RunningCommand {
    process: ProcessRef,
    members: Members,
}

/// The processes of a command.
enum Members {
    /// Processes of the node.
    OfNode(ProcessTree),
    /// A process of a sandbox. The child of this process waits for it.
    OfSandbox(SandboxedCommand),
}

/// How far the ending of a command has come.
enum Ending {
    NotYet,
    HungUp { until: Instant },
    Killed { until: Instant },
}

impl Ending {
    fn killed() -> Self {
        Self::Killed { until: Instant::now() + DYING }
    }
}

impl RunningCommand {
    /// Takes over the command. A pid is accepted only if it is a child of this process.
    pub fn adopt(pid: i32, cgroups: Option<Cgroups>) -> io::Result<Self> {
        Self::of(pid, Members::OfNode(ProcessTree::new(pid, cgroups)))
    }

    /// Takes over a process that waits for a command in a sandbox.
    pub fn in_sandbox(pid: i32, command: SandboxedCommand) -> io::Result<Self> {
        Self::of(pid, Members::OfSandbox(command))
    }

    fn of(pid: i32, members: Members) -> io::Result<Self> {
        let process = ProcessRef::open(pid)?;
        let flags = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        waitid(WaitId::PidFd(process.pidfd.as_fd()), flags)?;
        Ok(Self { members, process })
    }

    fn hang_up(&self) -> io::Result<()> {
        match &self.members {
            Members::OfNode(tree) => tree.hang_up(),
            Members::OfSandbox(command) => command.hang_up(),
        }
    }

    fn kill(&self) -> io::Result<()> {
        match &self.members {
            Members::OfNode(tree) => tree.kill(),
            Members::OfSandbox(command) => command.kill(&self.process),
        }
    }

    /// The child of this process.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.process.pidfd.as_fd()
    }

    /// The command's processes, unless they are in a sandbox.
    pub fn tree(&self) -> Option<&ProcessTree> {
        match &self.members {
            Members::OfNode(tree) => Some(tree),
            Members::OfSandbox(_) => None,
        }
    }

    /// Waits for the command's end, and ends it if the plugin orders that or is gone. False if the command was killed
    /// and does not end, because it is frozen or hangs in the kernel.
    pub fn watch(&self, plugin: &OwnedFd) -> io::Result<bool> {
        let mut ending = Ending::NotYet;
        loop {
            let limit = match &ending {
                Ending::HungUp { until } | Ending::Killed { until } => {
                    Some(until.saturating_duration_since(Instant::now()))
                }
                Ending::NotYet => None,
            };
            let listening = matches!(ending, Ending::NotYet);
            let (ended, told) = wait(&self.process, listening.then_some(plugin), limit)?;
            if ended {
                if !listening {
                    self.kill()?;
                }
                return Ok(true);
            }
            ending = match ending {
                Ending::NotYet if told => self.obey(receive(plugin))?,
                Ending::HungUp { until } if Instant::now() >= until => {
                    self.kill()?;
                    Ending::killed()
                }
                Ending::Killed { until } if Instant::now() >= until => return Ok(false),
                other => other,
            };
        }
    }

    /// Carries out an order. If the plugin is gone, the command is ended.
    fn obey(&self, order: io::Result<Option<(HelperOrder, Vec<OwnedFd>)>>) -> io::Result<Ending> {
        match order {
            Ok(Some((HelperOrder::Hangup, _))) => {
                self.hang_up()?;
                Ok(Ending::NotYet)
            }
            Ok(Some((HelperOrder::Run, _))) => Ok(Ending::NotYet),
            Ok(Some((HelperOrder::Kill, _))) => {
                self.kill()?;
                Ok(Ending::killed())
            }
            Ok(Some((HelperOrder::End, _)) | None) | Err(_) => {
                self.hang_up()?;
                Ok(Ending::HungUp { until: Instant::now() + PATIENCE })
            }
        }
    }

    /// Reaps the command, which has ended; its status.
    pub fn reap(&self) -> io::Result<ExecExit> {
        let status = waitid(WaitId::PidFd(self.process.pidfd.as_fd()), WaitIdOptions::EXITED)?;
        let status = status.ok_or(io::ErrorKind::NotFound)?;
        let signal = status.terminating_signal().unwrap_or(0);
        Ok(ExecExit { exit_code: status.exit_status().unwrap_or(128 + signal), signal })
    }
}

/// Waits for the command's end, for an order of the plugin, or for the end of the time. Tells which of the first two
/// came.
fn wait(process: &ProcessRef, plugin: Option<&OwnedFd>, limit: Option<Duration>) -> io::Result<(bool, bool)> {
    let limit = limit.map(Timespec::try_from).transpose().map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut events = vec![PollFd::new(&process.pidfd, PollFlags::IN)];
    events.extend(plugin.map(|plugin| PollFd::new(plugin, PollFlags::IN)));
    match poll(&mut events, limit.as_ref()) {
        Ok(_) => Ok((!events[0].revents().is_empty(), events.get(1).is_some_and(|event| !event.revents().is_empty()))),
        Err(Errno::INTR) => Ok((false, false)),
        Err(error) => Err(error.into()),
    }
}
