//! The consistency check: compares the store on disk with its format, and repairs what it can.
//!
//! - Layers are compared with their summaries before the lock is taken, because that takes long and layers never
//!   change.
//! - Listing, judging and repairing happen under the exclusive store lock.
//! - [`judge`] is pure: facts in, verdicts out.
//! - Damaged data that can be fetched again is removed, so that the next pull fetches it. Data that a lease holds is
//!   only reported, and so are files that the store did not write.

mod check;
mod facts;
mod judge;
mod repair;
mod report;
#[cfg(test)]
mod tests;

pub use check::fsck;
pub use report::{Finding, FindingKind, FsckOptions, FsckReport, Outcome, Severity};
