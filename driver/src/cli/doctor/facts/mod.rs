//! Gathers the facts for the checks. Reads files of the kernel, and asks programs that only answer questions.
//!
//! A fact that cannot be found out is left out: no check fails because of it.

mod agent;
mod host;
mod node;
mod nomad_program;

pub use self::{
    agent::agents,
    host::{clock, kernel, network},
    node::{directories, is_forgotten, leftovers, opened, plugin, registries},
};

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// A program of the system. The PATH of a shell may lack the directories for administrators.
fn program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    env::split_paths(&path).chain(system).map(|directory| directory.join(name)).find(|file| file.is_file())
}

/// The standard output of a program that succeeds.
fn answer(program: &Path, arguments: &[&str]) -> Option<Vec<u8>> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then_some(output.stdout)
}
