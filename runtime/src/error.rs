//! The errors of the runtime. Their texts are for the reader of the task's events.

use host::{IoError, record::RecordError};
use serde::{Deserialize, Serialize};

use crate::plan::ContainerId;

/// Why an operation of the runtime failed, other than starting a container.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The operating system refused an action.
    #[error(transparent)]
    Io(#[from] IoError),
    /// A record cannot be read.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// There is no such container, or it has ended.
    #[error("container {0} is not running")]
    NotRunning(ContainerId),
    /// The container cannot have a user namespace of its own.
    #[error("{0}")]
    UserNamespace(String),
    /// An installed runtime failed.
    #[error("{0}")]
    Installed(String),
    /// Processes of the container did not end although they were killed.
    #[error("container {0}: processes did not end within {1} seconds of being killed")]
    StillAlive(ContainerId, u64),
}

/// Adds the attempted action to an error of the operating system.
pub(crate) trait Context<T> {
    /// `action` is computed only for an error.
    fn context(self, action: impl FnOnce() -> String) -> Result<T, RuntimeError>;
}

impl<T, R: host::Context<T>> Context<T> for R {
    fn context(self, action: impl FnOnce() -> String) -> Result<T, RuntimeError> {
        Ok(host::Context::context(self, action)?)
    }
}

/// Why a container could not be started. Everything that was made for it has been removed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct StartError {
    /// The kind, for decisions.
    pub kind: StartErrorKind,
    /// The reason as text.
    pub message: String,
}

/// Kinds of [`StartError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartErrorKind {
    /// The command does not exist in the container.
    CommandNotFound,
    /// The command exists and cannot be executed.
    CommandNotExecutable,
    /// The user or a group is not in the image.
    UnknownUser,
    /// The source of a mount, or a device, is missing or cannot be used.
    MountSource,
    /// The plan is wrong.
    Invalid,
    /// The container cannot have a user namespace of its own. It may start in the node's.
    UserNamespace,
    /// There is a container of this name already.
    Exists,
    /// It took too long, probably because the server of a volume does not answer.
    TimedOut,
    /// Any other error.
    Internal,
}

impl StartError {
    pub(crate) fn new(kind: StartErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StartErrorKind::Internal, message)
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StartErrorKind::Invalid, message)
    }
}

impl From<RuntimeError> for StartError {
    fn from(error: RuntimeError) -> Self {
        let kind = match error {
            RuntimeError::UserNamespace(_) => StartErrorKind::UserNamespace,
            _ => StartErrorKind::Internal,
        };
        Self::new(kind, error.to_string())
    }
}

/// Why a command could not be run in a container.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// There is no such container, or it has ended.
    #[error("container {0} is not running")]
    NotRunning(ContainerId),
    /// The request is wrong.
    #[error("{0}")]
    Invalid(String),
    /// Any other error.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}
