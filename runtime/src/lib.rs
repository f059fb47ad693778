//! Containers: OCI spec, monitor, exec, engine, cgroups, logs and terminals.
//!
//! This crate does not know Nomad or images. Decisions are pure (`plan` → `spec`); actions are thin. Most of it runs in
//! processes with one thread, the roles `monitor` and `exec-helper` of our binary ([`run_role`]). A process with
//! threads uses [`Runtime`], which executes our own binary in these roles.
//!
//! The layers, from the top: `containers` (the facade) → `monitor`, `exec`, `volumes` → `engine`, `installed` →
//! `command` → `spec`, `rootfs`, `cgroup` → `state`, `logs`, `plan`, and the low modules `process`, `packets`,
//! `launcher`, `role`, `sys`.

mod address;
pub mod block_device;
#[cfg(feature = "bundle")]
pub mod bundle;
mod capability;
pub mod cgroup;
mod command;
mod console_socket;
mod containers;
mod directory_watch;
mod dispatch;
mod engine;
mod error;
mod exec;
mod exit_status;
pub mod file_system;
mod hooks;
mod id_map;
mod installed;
mod launcher;
pub mod logs;
mod monitor;
mod mountinfo;
mod packets;
pub mod plan;
mod process;
pub mod project_quota;
mod relay;
mod report_pipe;
mod resctrl;
mod role;
mod rootfs;
mod selinux;
mod spec;
mod state;
mod sys;
mod terminal_hold;
mod user;
mod volumes;

pub use cgroup::{
    CgroupEvents, OutOfMemory, Victim,
    stats::{CpuStats, MemoryStats, Stats},
    usage::{BlockIo, Pressure, Stall, Usage},
};
pub use containers::{
    ContainerLogs, ContainerState, ContainerView, LayerUse, Mark, NetworkUsage, Observer, Running, Runtime,
    StartOptions, StatsReader, Status, TaskWatch, Traffic, Undelivered, UsageSource, containers, layer_image_problem,
};
pub use dispatch::run_role;
pub use engine::LIBCONTAINER_VERSION;
pub use error::{ExecError, RuntimeError, StartError, StartErrorKind};
pub use host::tree_size::TreeSize;
pub use process::ProcessRef;
pub use role::{ExecArgs, MonitorArgs, RelayArgs, Role};
pub use rootfs::{Blocks, LayerLimit, VolumeImport, copy_directory, copy_image};
pub use state::ExitRecord;
pub use terminal_hold::TerminalHold;
pub use volumes::{NamedVolumeRecord, VolumeError, VolumeKey, VolumeOptions};

pub use exec::{DebugImage, ExecExit, ExecOptions, ExecProcess, ExecRequest, OtherUser, TerminalSize};
