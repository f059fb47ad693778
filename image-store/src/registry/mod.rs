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
mod gathering;
mod guard;
mod host;
mod payload;
mod session;
mod traffic;
mod upload;

pub(crate) use blob::stream_blob;
pub use config::{InternalRedirects, RegistryConfig};
pub(crate) use endpoints::{Caller, Endpoints};
pub use host::check_registry;
pub(crate) use host::install_tls_provider;
pub(crate) use session::Session;
pub use traffic::HostTraffic;
pub(crate) use upload::{Placed, Upload};
