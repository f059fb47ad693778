//! Restricting a thread of the driver to what it needs, for as long as it lives.
//!
//! The restrictions hold for the calling thread and for all threads and processes that it makes later. They cannot be
//! undone. A system call that is not listed fails with EPERM, and the kernel logs it (audit type 1326, or the kernel's
//! log): a process that owns an exit status must not die because of an incomplete list.

mod apply;
pub mod calls;
mod capabilities;
mod files;
mod sys;

pub use apply::{Confinement, KILL_VARIABLE};
pub use capabilities::{hold_only, limit_bounding_set};
pub use files::{Access, Files, Place};
pub use seccomp::{CheckedCall, OwnCalls, Values};
pub use sys::{FilterLog, install_filter};
