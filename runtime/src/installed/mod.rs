//! Runtimes that are installed on the node, in place of the built-in engine: one adapter to the command line of OCI
//! runtimes.
//!
//! The spec, the root, the cgroups, the logs and the monitor are the same as with the engine. Only three things are the
//! runtime's: it makes the container's first process ([`InstalledContainer::create`]), runs commands in the container,
//! and removes what it made.
//!
//! Decisions are pure: what differs between runtimes ([`Dialect`]), the command lines ([`command_line`]), the spec
//! ([`for_installed`]) and the runtime's answers ([`answers`]). [`execute`] runs one command. Each container has a
//! directory of its own for the runtime's state, in the task's directory, so the removal of the container leaves
//! nothing of a runtime that was killed.

mod answers;
mod command_line;
mod container;
mod dialect;
mod execute;
mod spec;

pub(crate) use answers::failure_kind;
pub(crate) use container::{ExecFiles, InstalledContainer};
pub(crate) use dialect::Dialect;
pub(crate) use spec::{exec_process, for_installed};
