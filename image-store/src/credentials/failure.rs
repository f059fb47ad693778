//! The failure of a source of credentials.

/// A source that should have answered failed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// "the docker config /path" or "docker-credential-x".
    pub(super) origin: String,
    pub(super) problem: String,
}
