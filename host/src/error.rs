//! An error of the operating system together with the attempted action.

use std::io;

/// The operating system refused an action.
#[derive(Debug, thiserror::Error)]
#[error("{action}: {source}")]
pub struct IoError {
    /// The attempted action, as "reading /etc/hosts".
    pub action: String,
    /// The error of the operating system.
    pub source: io::Error,
}

/// Adds the attempted action to an error of the operating system.
pub trait Context<T> {
    /// `action` is computed only for an error. It completes "the error occurred while …".
    fn context(self, action: impl FnOnce() -> String) -> Result<T, IoError>;
}

impl<T, E: Into<io::Error>> Context<T> for Result<T, E> {
    fn context(self, action: impl FnOnce() -> String) -> Result<T, IoError> {
        self.map_err(|source| IoError { action: action(), source: source.into() })
    }
}
