//! Why an operation failed.

use host::{IoError, record::RecordError};

/// The reason, in the words that the author of the volume reads.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct PluginError(String);

impl PluginError {
    /// A reason with its own text, which names the parameter or the file and the remedy.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl From<IoError> for PluginError {
    fn from(error: IoError) -> Self {
        Self(error.to_string())
    }
}

impl From<RecordError> for PluginError {
    fn from(error: RecordError) -> Self {
        Self(error.to_string())
    }
}
