//! Access to registries over HTTP.
//!
//! - A [`Session`] is one host, one repository, one caller.
//! - Every body has a limit before it is read.
//! - Credentials are sent only to the host that they belong to.

pub(crate) mod address;
pub(crate) mod auth;
mod blob;
mod body;
pub(crate) mod challenge;
mod config;
mod documents;
mod endpoints;
mod failure;
mod guard;
mod host;
mod session;
mod traffic;

pub(crate) use blob::Sink;
pub use config::{InternalRedirects, RegistryConfig};
pub(crate) use endpoints::{Caller, Endpoints};
pub use host::check_registry;
pub(crate) use session::Session;
pub use traffic::HostTraffic;
