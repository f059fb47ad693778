//! Gathers the facts for the checks. Reads files of the kernel, and asks programs that only answer questions.
//!
//! A fact that cannot be found out is left out: no check fails because of it.

mod agent;
mod host;
mod node;
mod nomad_program;
mod programs;

pub use self::{
    agent::agents,
    host::{clock, kernel, network},
    node::{directories, is_forgotten, leftovers, opened, plugin, registries},
};
