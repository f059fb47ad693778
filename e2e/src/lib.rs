//! Helpers for tests on a real Nomad: an agent, a registry with test images, jobs from `e2e/jobs` and `examples`, and a
//! check for leftovers.
//!
//! Drop guards end every process by its pid, also when a case fails. The helpers touch only their temporary directory,
//! their bridges and their allocations. A run has its own network namespace. It can therefore run beside other agents.

mod acl;
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
mod second;
pub mod stall;
pub mod tools;
pub mod versions;
pub mod watch;

pub use agent::Agent;
pub use alloc::{Alloc, Exit};
pub use consul::Consul;
pub use failure::{Context, Failure, Outcome};
pub use job::Job;
pub use registry::Registry;
pub use second::SecondClient;
pub use tools::Tools;
pub use versions::Version;
