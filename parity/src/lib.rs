//! The differential suite: each case is one job, which runs once with Nomad's `docker` driver and once with `oci-rs` on
//! the same agent. What the job prints and what the host sees is compared.
//!
//! A difference fails unless [`differences`] lists it. An entry of that list that no longer differs fails too.
//! `docs/docker-parity.md` is generated from the list.

pub mod case;
pub mod cases;
pub mod differences;
pub mod dockerd;
pub mod document;
pub mod driver;
pub mod images;
pub mod job;
pub mod log_servers;
pub mod mark;
pub mod node;
pub mod normal;
pub mod observed;
pub mod runner;
pub mod seen;
