//! Commands run in a running container.
//!
//! Three processes, none of which is the container's before it has nothing left to lose:
//!
//! * the plugin spawns the *helper*, the role `exec` of our binary, one per command ([`client`]). It stays in the
//!   host's namespaces, holds nothing of the container, waits for the command and reports its end ([`helper`]). When
//!   the plugin goes away, or asks for it, it ends the command's session ([`session`]).
//! * the helper forks the *entrant*, which joins the container's control groups and namespaces, becomes the container's
//!   user and gives up everything that the container may not do ([`entrant`]). Only then does it make
//! * the *command*, as the helper's child: the first process that the container can see, with the container's own
//!   rights.
//!
//! libcontainer is not used here: its way into a container loads no system call filter and joins no user namespace.

mod client;
mod entrant;
mod helper;
mod identity;
mod protocol;
mod session;
mod terminal;

pub(crate) use client::start;
pub use client::{ExecExit, ExecOptions, ExecProcess, ExecRequest, OtherUser, TerminalSize, ToolsImage};
pub(crate) use helper::main;
