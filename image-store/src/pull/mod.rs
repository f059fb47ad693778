//! Pulls and loads: from a request for an image to layers on disk that can be mounted.
//!
//! - A pull resolves the name (at the registry, or from the record if that may be used), writes its lease, and streams
//!   missing layers through the unpacker in parallel. Only then is the image recorded.
//! - A large native layer is not fetched, if the caller allows it: it is mounted, and its data comes meanwhile
//!   (`partial`, `serve`).
//! - Concurrent pulls of the same content are deduplicated. A failure is not shared. A pull that needs a whole layer
//!   waits for a service that has begun to fetch it (`join`).
//! - A cancelled pull leaves only finished layers. When the cancellation is reported, nothing else is left; when its
//!   future is dropped, soon after.

mod access;
mod acquire;
pub(crate) mod answers;
mod cancel;
mod disk_space;
mod documents;
mod download;
mod grants;
mod join;
mod lead;
mod lease_guard;
mod load;
mod partial;
mod priority;
mod puller;
mod request;
mod resolve;
mod resolve_cache;
mod resolved;
mod serve;
mod unpack;

pub(crate) use acquire::acquire;
pub use answers::RegistryAnswer;
pub(crate) use cancel::until_cancelled;
pub(crate) use download::join_all;
pub(crate) use load::load;
pub use partial::{LayerEvent, LayerEventKind, LayerGroup, PartialConfig};
pub(crate) use puller::{Puller, PullerConfig};
pub use request::{Image, LoadRequest, PullRequest};
