//! Pulls from real and from misbehaving registries onto a real file system. Needs root: layers hold devices and owners.
// A failed `unwrap` is how a test fails.

#![allow(clippy::unwrap_used)]

mod ceilings;
mod common;
mod cves;
mod faults;
mod formats;
mod hostile;
mod layers;
mod load;
mod login;
mod peers;
mod retention;
mod seeds;
