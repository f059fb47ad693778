//! The state of containers on disk: the task's directory, its records, and the lock under which it changes.
//!
//! A record is absent, complete, or a temporary file that the next writer replaces. Every record has a version; a build
//! reads all versions up to its own.

mod lock;
mod records;
mod task_dir;

pub(crate) use lock::{TaskLock, is_marked, is_unanswered, mark_answered};
pub use records::ExitRecord;
pub(crate) use records::{
    CGROUP, CONTAINER, ContainerRecord, EXIT, FULL_LAYER, GUARD, HANG_UP, LOG_WATCHER, MONITOR, NO_GUARD_NEEDED, PLAN,
    RELAY,
};
pub(crate) use task_dir::{TaskDir, private_dir, tasks};
