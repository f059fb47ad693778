//! The executable `oci-rs`: a Nomad plugin, a container's monitor, an exec helper or an operator's command.
//!
//! The role is chosen here, before any thread, async runtime or logger exists. Monitor and exec fork, so they must stay
//! single-threaded. A monitor lives as long as its task, so it must need little memory.

mod apparmor;
mod blocking;
mod cleanup;
mod cli;
mod config;
mod device_plugin;
mod dockerd;
mod error;
mod events;
mod exec_prefix;
mod exporter;
mod fingerprint;
mod groups;
mod hclog;
mod health;
mod incomplete_layers;
mod kernel_log;
mod layers;
mod log_directory;
mod logs;
mod metrics;
mod name;
mod node;
mod node_info;
mod nomad;
mod plan;
mod plugin;
mod pointer;
mod prefetch;
mod rpc;
mod runtimes;
mod selinux;
mod signal;
mod subordinate_ids;
mod sys;
mod task;
mod traces;
mod volume_plugin;

use std::process::ExitCode;

/// musl's allocator returns memory to the kernel again and again, which costs a task start a tenth of its time
/// (`docs/decisions.md`).
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    match runtime::run_role(std::env::args_os().skip(1)) {
        Some(exit_code) => exit_code,
        None if plugin::launched_by_nomad() => plugin::main(),
        None if volume_plugin::is_called() => volume_plugin::main(),
        None => cli::main(),
    }
}
