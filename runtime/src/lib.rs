//! Containers: OCI spec, monitor, exec, engine, cgroups, log and terminal plumbing.
//!
//! Knows no Nomad and no images. What decides is pure (`plan` → `spec`); what acts is thin. Nothing here may run in a
//! threaded process except [`Runtime`], which only executes our own binary in its roles `monitor` and `exec`.

pub mod plan;
