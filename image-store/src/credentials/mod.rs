//! Credentials for registries: the types, and the lookup in docker's `config.json` and in credential helpers.

pub(crate) mod docker;
mod failure;
mod helper;
mod lookup;
mod secret;

pub(crate) use lookup::find;
pub use secret::{CredentialSources, Credentials, Secret};
pub(crate) use secret::{IDENTITY_TOKEN_USER, REGISTRY_TOKEN_USER};
