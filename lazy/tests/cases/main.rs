//! Incomplete layers on the real kernel: they are mounted, and their files are read. Needs root and Linux 6.14; each
//! test is skipped without them and says so.
// A failed `unwrap` is how a test fails.

#![allow(clippy::unwrap_used)]

mod common;
mod partial;
mod serve;
mod sources;
mod takeover;
