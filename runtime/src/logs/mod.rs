//! The log FIFOs of containers: their readers, and what happens to output that has no reader.
//!
//! A container writes straight into Nomad's FIFOs; no process of ours copies its output. The monitor and the container
//! hold both ends of each FIFO, so the death of its reader (Nomad's logmon) does not kill the container. But a FIFO
//! without a reader fills up, and then the container blocks. So a full FIFO without a reader is *drained*: its content
//! is discarded and counted.
//!
//! This module is the mechanism; it blocks, spawns nothing and sends no events. It has two users. The plugin watches
//! the FIFOs of all its containers with one [`LogWatcher`]. While no plugin lives that does so, each monitor drains its
//! own FIFOs (`monitor::drain`).
//!
//! What always holds: the plugin drains a FIFO only after a look at the open files of all processes found no reader,
//! and no process opened or closed the FIFO since that look began, as far as the plugin knows. A monitor may not look
//! at other processes. It drains a FIFO from which nothing was read for a while although it was full (`UnreadWatch`).

mod drainer;
mod dropped;
mod fifo;
mod output;
mod reader;
mod stream;
mod unread;
mod watcher;
mod writers;

pub use drainer::{Drained, FifoDrainer};
pub use dropped::DroppedBytes;
pub use fifo::{Fifo, FileId, readers_of, waiting_bytes};
pub(crate) use fifo::{discard, is_full};
pub(crate) use output::{HeldFifo, LogStream, Outputs, open_handle};
pub use reader::Action;
pub use stream::OutputStream;
pub(crate) use unread::{UnreadWatch, Verdict};
pub use watcher::{Checked, LogWatcher, ReaderCheck, RemovedStream, StreamKey};
pub use writers::LogWriters;
