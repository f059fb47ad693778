//! Containers: OCI spec, monitor, exec, engine, cgroups, log and terminal plumbing.
//!
//! Knows no Nomad and no images. What decides is pure (`plan` → `spec`); what acts is thin. Nothing here may run in a
//! threaded process except [`Runtime`], which only executes our own binary in its roles `monitor` and `exec`.

mod address;
mod capability;
pub mod cgroup;
mod command;
mod containers;
mod directory_watch;
mod dispatch;
mod engine;
mod error;
mod exec;
mod exit_status;
mod launcher;
pub mod logs;
mod monitor;
mod packets;
pub mod plan;
mod process;
mod report_pipe;
mod role;
mod rootfs;
mod spec;
mod state;
mod sys;
mod terminal_hold;
mod user;

pub use cgroup::{
    CgroupEvents, OutOfMemory, Victim,
    stats::{CpuStats, MemoryStats, Stats},
};
pub use containers::{Running, Runtime, StatsReader, Status, containers, layer_image_problem};
pub use dispatch::run_role;
pub use error::{ExecError, RuntimeError, StartError, StartErrorKind};
pub use process::ProcessRef;
pub use role::{ExecArgs, MonitorArgs, Role};
pub use state::ExitRecord;
pub use terminal_hold::TerminalHold;

pub use exec::{DebugImage, ExecExit, ExecOptions, ExecProcess, ExecRequest, OtherUser, TerminalSize};
