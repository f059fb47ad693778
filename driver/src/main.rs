//! The one oci-rs binary, which is a Nomad plugin, a container's monitor, an exec helper or an operator's tool.
//!
//! The role is chosen here, before any thread, runtime or logger exists: monitor and exec must stay single-threaded
//! because they fork, and a monitor costs its task private memory for as long as it lives.

mod blocking;
mod cleanup;
mod cli;
mod config;
mod error;
mod events;
mod exec_prefix;
mod fingerprint;
mod hclog;
mod layers;
mod logs;
mod node;
mod plan;
mod plugin;
mod rpc;
mod signal;
mod sys;
mod task;

use std::process::ExitCode;

/// musl's own gives memory back to the kernel at each turn, which costs a start a tenth of its time
/// (`docs/decisions.md`).
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    if let Some(ended) = runtime::run_role(std::env::args_os().skip(1)) {
        return ended;
    }
    if plugin::launched_by_nomad() { plugin::main() } else { cli::main() }
}
