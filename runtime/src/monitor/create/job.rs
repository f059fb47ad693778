//! What the creator works on.

use std::os::fd::OwnedFd;

use crate::{logs::Outputs, monitor::console::Console, role::MonitorArgs, state::TaskDir};

/// The inputs of a creation beside the plan.
pub(in crate::monitor) struct Job<'a> {
    pub args: &'a MonitorArgs,
    pub task: &'a TaskDir,
    pub outputs: &'a Outputs,
    /// The socket for the terminal, if the container has one.
    pub console: Option<&'a Console>,
    /// The pipe to which the first process writes a failure.
    pub report: &'a OwnedFd,
}
