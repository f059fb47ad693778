//! Pulls from correct and from faulty registries to a real file system. Needs root: layers contain devices and owners.
// A failed `unwrap` is how a test fails.

#![allow(clippy::unwrap_used)]

mod budget;
mod cancel;
mod ceilings;
mod child;
mod common;
mod conversion;
mod crash;
mod cves;
mod disk;
mod faults;
mod formats;
mod fsck;
mod hostile;
mod layers;
mod load;
mod login;
mod native;
mod nested;
mod partial;
mod peers;
mod pinned;
mod processes;
mod publish;
mod retention;
mod seeds;
