//! The plugin process: started, connected, watched and ended as go-plugin's host does it.

mod command;
mod connection;
mod handshake;
mod process;
mod streams;

pub use command::{COOKIE, KILL_ON_VIOLATION, PluginCommand, binary};
pub use connection::{Plugin, nomad_config};
pub use handshake::Handshake;
pub use process::{Lines, Process};
pub use streams::HostStreams;
