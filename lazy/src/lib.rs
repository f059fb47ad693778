//! Layers that are mounted before their data is here: the kernel asks before each read.
//!
//! A native layer (`docs/lazy-images.md`) is one file. Its metadata and the beginning of its hash tree are fetched
//! first. Then the file is mounted, and Linux announces each read of it (`FAN_PRE_ACCESS` of fanotify, Linux 6.14).
//! [`Lazy`] answers when the data is in the file. The rest streams in the background. When all of it is here, the
//! reads are not announced any more, and the file is an ordinary one.
//!
//! No reader may see a byte that is not the layer's. The kernel gives zeros for data that is not here, as soon as
//! no process can answer any more. So these rules hold:
//! - A byte is written only after its chunk was verified, and a chunk counts as present only after it was written.
//! - A layer is mounted only after [`Lazy::serve`] has returned: a mount that is older is never announced.
//! - As long as a layer is incomplete, a process holds [`Lazy::group`]. A reader then waits for the next process that
//!   serves, see [`Lazy::take_over`].
//! - An event is on disk from the moment at which it counts as read (module `slots`).
//! - A read is answered only when all reads with its number may be (module `waiting`).
//! - A layer that was completed is checked as a whole, and its digest too: its hash tree is only the manifest's word.
//!
//! The crate must not know registries, the store, Nomad or containers.

mod description;
mod error;
mod event;
mod front;
mod hashes;
mod link;
mod listener;
mod observer;
mod pace;
mod partial;
mod plan;
mod probe;
mod reads;
mod service;
mod slots;
mod source;
mod state;
mod sys;
mod waiting;
mod worker;

pub use description::{CHUNK, Description, chunks_of_all};
pub use error::LazyError;
pub use observer::{LazyEvent, Observer};
pub use partial::{IMAGE, PartialLayer};
pub use probe::probe;
pub use service::{Hurry, Lazy, Predecessor, ServiceLock, StartWaits};
pub use slots::FileId;
pub use source::{Source, SourceError, Sources};
pub use state::Settings;
