//! The integration kit: it plays Nomad to the built binary, over the real wire and against a real kernel.
//!
//! A [`node::Node`] stands for one machine under a Nomad client: directories for the driver, an alloc dir, cgroups. It launches
//! the binary as go-plugin does ([`plugin`]), hands it configuration as Nomad encodes it ([`hcl`]), makes what a client makes
//! for a task ([`task`], [`cgroup`]), and at the end tells what was left behind ([`leak`]). The kit takes nothing from the
//! driver's own crates except the generated protocol types, so that a mistake there cannot hide itself here.
//!
//! Tests need root. Whatever a test makes goes away with its node, also when the test fails.

pub mod calls;
pub mod cgroup;
pub mod exec;
pub mod hcl;
pub mod hclog;
pub mod leak;
pub mod node;
pub mod plugin;
pub mod task;
