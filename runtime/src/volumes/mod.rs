//! Volumes with options: file systems that tasks name and that the driver mounts, as docker's volume driver `local`
//! does.
//!
//! The first task that uses such a volume mounts it on a directory of the node, and containers bind that directory. The
//! last task unmounts it. Always holds:
//!
//! - A file for each user exists before the file system is mounted and until the user's container is removed. So a
//!   volume without such a file can be unmounted, whichever process was killed.
//! - Whether a volume is mounted is read from the kernel and never from a record: a reboot unmounts everything.
//! - Mounting and unmounting happen under the lock of the volume, and in a process of their own, which is killed when
//!   its time is over. So a server that does not answer holds neither a thread nor a lock for longer.
//! - Values that are passwords are in memory only: neither in a record nor in a command line, a log or an error.

mod call;
mod client;
mod confine;
mod listing;
mod mounter;
mod options;
mod problem;
mod protocol;
mod shared;
mod table;

pub use listing::NamedVolumeRecord;
pub use options::VolumeOptions;
pub use problem::VolumeError;
pub use shared::VolumeKey;

pub(crate) use listing::named_volumes;
pub(crate) use mounter::main;
pub(crate) use shared::{Volumes, fill_lock};
