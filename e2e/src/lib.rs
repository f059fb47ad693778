//! The kit for tests on a real Nomad: an agent of our own, a registry with an image of our own, jobs from `e2e/jobs`, and a
//! look at what is left behind.
//!
//! Everything that the kit starts is ended by its drop guard, by pid, also when a case fails. It touches only what carries one
//! of its names: its temporary directory, its bridge, the ids of its allocations. All of it happens in a network namespace of the
//! run's own. So it can run beside other agents.

pub mod agent;
pub mod alloc;
pub mod api;
mod config;
pub mod consul;
mod diagnosis;
mod failure;
pub mod job;
pub mod leaks;
pub mod network;
mod nomad;
mod placement;
pub mod ports;
pub mod process;
pub mod pty;
pub mod registry;
pub mod tools;
pub mod watch;

pub use agent::Agent;
pub use alloc::{Alloc, Exit};
pub use consul::Consul;
pub use failure::{Context, Failure, Outcome};
pub use job::Job;
pub use registry::Registry;
pub use tools::Tools;
