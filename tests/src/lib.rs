//! A stand-in for the Nomad agent. It drives the built binary over the real gRPC protocol and on a real kernel.
//!
//! A [`node::Node`] is one machine of a Nomad client: directories for the driver, an alloc directory, cgroups. It
//! launches the binary as go-plugin does ([`plugin`]) and encodes its configuration as Nomad does ([`hcl`]). It makes
//! what a client makes for a task ([`alloc`], [`cgroup`], [`log`], [`task`]), and at the end it finds leftovers
//! ([`leak`]). This crate uses no crate of the driver except the generated protocol types. An error of the driver can
//! therefore not hide itself here.
//!
//! Tests need root. A node removes everything that its test made, also when the test fails.

pub mod alloc;
pub mod announced_reads;
pub mod calls;
pub mod cgroup;
pub mod exec;
pub mod hcl;
pub mod hclog;
pub mod intruder;
pub mod leak;
mod leftovers;
pub mod log;
pub mod node;
pub mod plugin;
pub mod project_quota;
pub mod scrape;
mod sys;
pub mod task;
