//! The monitor: one process per container, which creates it, owns it, and records how it ended.
//!
//! It has one thread and only waits. Everything that needs memory (the plan, the spec, libcontainer) happens in its
//! *creator*, a fork that ends as soon as the container runs (`create`). The container does not depend on the monitor:
//! its output goes straight to the log FIFOs, and it survives the monitor being killed. Only where a log driver
//! delivers the output, a process copies it (`crate::relay`), which the monitor starts (`relay`).
//!
//! While layers of the container are incomplete, the monitor holds the group that announces reads of them, and a fork
//! guards it (`guard`).
//!
//! On its standard output the monitor sends the plugin one message: whether the container runs.

mod confine;
mod console;
mod create;
mod drain;
mod guard;
mod lifecycle;
mod relay;
mod report;
mod watch;

pub(crate) use lifecycle::main;
pub(crate) use report::StartOutcome;
