//! Commands run in a running container.
//!
//! Three processes are involved. None of them is exposed to the container while it has a right that the container
//! lacks.
//!
//! * The plugin starts the *helper*, the role `exec-helper` of our binary, one per command ([`client`]). It stays in
//!   the host's namespaces, holds nothing of the container, waits for the command and reports its end ([`helper`]).
//!   When the command has begun, it gives up most of its rights ([`confine`]). If the plugin goes away, or orders it,
//!   the helper ends the command's processes ([`running`]).
//! * The helper forks the *entering process*. It joins the container's cgroups and namespaces, becomes the container's
//!   user and gives up every right that the container does not have ([`enter`]). Only then does it make the command.
//! * The *command* is the helper's child. It is the first process that the container can see, and has the container's
//!   rights.
//!
//! In a container of an installed runtime, the runtime takes the place of the entering process ([`installed`]).
//!
//! libcontainer is not used here: its way into a container loads no system call filter and joins no user namespace.

mod begin;
mod client;
mod confine;
mod enter;
mod helper;
mod identity;
mod installed;
mod namespaces;
mod process_tree;
mod protocol;
mod pty;
mod reaper;
mod refusal;
mod request;
mod running;
mod sandboxed;
mod stdio;
mod waiting;

pub use client::ExecProcess;
pub(crate) use client::start;
pub(crate) use helper::main;
pub use request::{DebugImage, ExecExit, ExecOptions, ExecRequest, OtherUser, TerminalSize};
