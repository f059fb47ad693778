//! The log FIFOs and terminals of the plugin's tasks: schedules `runtime::logs` on the async runtime, and reports
//! dropped output.
//!
//! `runtime::logs` explains why a FIFO without a reader is drained, and when. One actor, the `watcher`, watches the
//! FIFOs of all tasks of this process. It belongs to the plugin, not to the monitor, because inotify instances are
//! few (128 for all of root's processes). While no plugin lives, each monitor drains its own FIFOs.
//!
//! | module | contents |
//! |---|---|
//! | `handle` | the way to the watcher |
//! | `watcher` | the actor that watches all log FIFOs |
//! | `watched_stream` | one watched stream of a task |
//! | `drain` | drains one held FIFO |
//! | `dropped` | reports dropped output |
//! | `terminal` | copies a terminal's output after its monitor was killed |

mod drain;
mod dropped;
mod handle;
pub mod terminal;
mod watched_stream;
mod watcher;

pub use self::{
    dropped::{lost_bytes, report_dropped, undelivered_lines},
    handle::{LogWatch, Logs},
};
