//! The errors of the crate.

use std::{
    io,
    path::{Path, PathBuf},
};

use layer::UnpackError;

/// Why a layer cannot be served before it is complete.
#[derive(Debug, thiserror::Error)]
pub enum LazyError {
    /// The operating system refused an action.
    #[error("{action} {path}: {source}")]
    Io {
        /// The attempted action.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The kernel or the file system lacks something.
    #[error("{problem}; reads before the data is here need Linux 6.14 and CAP_SYS_ADMIN")]
    Unsupported {
        /// What is missing.
        problem: String,
    },
    /// Another process serves.
    #[error("{path}: another process serves the incomplete layers of this directory")]
    Served {
        /// The locked file.
        path: PathBuf,
    },
    /// No source delivered the parts that must be there first.
    #[error("layer {digest}: {problem}")]
    Source {
        /// The layer.
        digest: String,
        /// The last error.
        problem: String,
    },
    /// The layer is none that this program wrote.
    #[error("layer {digest}: {problem}")]
    Refused {
        /// The layer.
        digest: String,
        /// The reason.
        problem: String,
    },
}

impl From<LazyError> for io::Error {
    fn from(error: LazyError) -> Self {
        match error {
            LazyError::Io { source, .. } => source,
            error => Self::other(error),
        }
    }
}

impl LazyError {
    pub(crate) fn of_layer(digest: &layer::Digest, error: UnpackError) -> Self {
        let digest = digest.to_string();
        let problem = match error {
            UnpackError::Refused { problem, .. } => problem,
            UnpackError::Disk { action, source, .. } => format!("{action}: {source}"),
            UnpackError::Aborted => "it was given up".to_owned(),
        };
        Self::Refused { digest, problem }
    }
}

/// Names the action and the file of an error.
pub(crate) fn at(action: &'static str, path: &Path) -> impl Fn(io::Error) -> LazyError + use<> {
    let path = path.to_owned();
    move |source| LazyError::Io { action, path: path.clone(), source }
}
