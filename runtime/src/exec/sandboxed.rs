//! A command in a sandbox, whose processes are no processes of the node.

use std::io;

use crate::{installed::InstalledContainer, process::ProcessRef};

/// A command in a sandbox.
pub(super) struct SandboxedCommand {
    container: InstalledContainer,
    /// Its pid in the sandbox.
    pid: i32,
}

impl SandboxedCommand {
    pub fn new(container: InstalledContainer, pid: i32) -> Self {
        Self { container, pid }
    }

    /// Sends SIGHUP to the command.
    pub fn hang_up(&self) -> io::Result<()> {
        self.container.kill_in_sandbox(self.pid, libc::SIGHUP).map_err(io::Error::other)
    }

    /// Kills the command, and the runtime's process that waits for it.
    pub fn kill(&self, waiting: &ProcessRef) -> io::Result<()> {
        let killed = self.container.kill_in_sandbox(self.pid, libc::SIGKILL).map_err(io::Error::other);
        // A command that has ended meanwhile cannot be killed.
        waiting.signal(libc::SIGKILL).and(if waiting.ended() { Ok(()) } else { killed })
    }
}
