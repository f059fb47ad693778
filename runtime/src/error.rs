//! What can go wrong, in words for the person who reads the task's events.

use std::{io, path::PathBuf};

use serde::{Deserialize, Serialize};

use crate::plan::ContainerId;

/// Why the runtime could not do what it was asked, apart from starting a container.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The operating system refused something.
    #[error("{action}: {source}")]
    Io {
        /// What was tried.
        action: String,
        /// The refusal.
        source: io::Error,
    },
    /// A record of ours cannot be read.
    #[error("{path}: not a record of this version: {problem}")]
    Record {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// There is no such container, or it has ended.
    #[error("container {0} is not running")]
    NotRunning(ContainerId),
    /// Processes of the container did not end although they were killed.
    #[error("container {0}: processes did not end within {1} seconds of being killed")]
    StillAlive(ContainerId, u64),
}

/// Adds what was tried to an error of the operating system.
pub(crate) trait Context<T> {
    fn context(self, action: impl FnOnce() -> String) -> Result<T, RuntimeError>;
}

impl<T, E: Into<io::Error>> Context<T> for Result<T, E> {
    fn context(self, action: impl FnOnce() -> String) -> Result<T, RuntimeError> {
        self.map_err(|source| RuntimeError::Io { action: action(), source: source.into() })
    }
}

/// Why a container could not be started; nothing of it is left.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct StartError {
    /// The kind, for callers that decide by it.
    pub kind: StartErrorKind,
    /// The reason in words.
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
    /// The source of a mount or device is missing or cannot be used.
    MountSource,
    /// The plan cannot be carried out as it stands.
    Invalid,
    /// A container of this name exists.
    Exists,
    /// Everything else.
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
        Self::internal(error.to_string())
    }
}

/// Why a command could not be run in a container.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// There is no such container, or it has ended.
    #[error("container {0} is not running")]
    NotRunning(ContainerId),
    /// The request itself is wrong.
    #[error("{0}")]
    Invalid(String),
    /// Everything else.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}
