//! The allocation's log directory, as containers see it.
//!
//! Nomad's log collector opens, makes and removes files in `alloc/logs` by name, as root of the node, and follows
//! links. A task that makes a name there decides which file of the node root writes to. Therefore no container can
//! write there:
//!
//! | path in a container | directory of the allocation | access |
//! |---|---|---|
//! | `/alloc/logs` | `alloc/logs/tasks` | read and write, shared by the allocation's tasks |
//! | `/alloc/logs/.nomad` | `alloc/logs` | read |
//!
//! For each file of `alloc/logs`, `alloc/logs/tasks` has a link of the same name to `.nomad`. The links are made before
//! a task starts, and follow the changes of `alloc/logs` while tasks of this process run (`watch`).

mod directory;
mod watch;

use std::path::{Path, PathBuf};

pub use self::{
    directory::{LogDirectory, open_nomad},
    watch::{LinkWatch, LogLinks},
};

/// The directory of the tasks' own files, below `alloc/logs`.
const TASKS: &str = "tasks";
/// The place in the tasks' directory at which a container has `alloc/logs`.
pub const NOMAD: &str = ".nomad";

/// Nomad's log directory of an allocation.
pub fn of_nomad(alloc_dir: &Path) -> PathBuf {
    alloc_dir.join("alloc/logs")
}

/// The log directory of an allocation's tasks.
pub fn of_tasks(alloc_dir: &Path) -> PathBuf {
    of_nomad(alloc_dir).join(TASKS)
}
