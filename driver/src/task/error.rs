//! Everything that can go wrong with a task, in the words that its user reads.

use image_store::PullError;
use network::NetworkError;
use runtime::{ExecError, StartError};

use super::{exec::prefix::PrefixError, lifecycle::Refusal};
use crate::{config::ConfigErrors, plan::PlanErrors, signal::UnknownSignal};

/// A call that failed. Texts are complete: the RPC layer adds a code, nothing else.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// The task block has mistakes.
    #[error("{0}")]
    Config(#[from] ConfigErrors),
    /// The task block, the image and the node do not go together.
    #[error("{0}")]
    Plan(#[from] PlanErrors),
    /// The image could not be had.
    #[error("image {image}: {error}")]
    Pull {
        /// As the job names it.
        image: String,
        /// Why.
        error: PullError,
    },
    /// A host path leads out of the allocation's directory.
    #[error("{0}")]
    Confinement(String),
    /// The container could not be made or its command not executed.
    #[error("{0}")]
    Start(#[from] StartError),
    /// The task's own network could not be made.
    #[error("{0}")]
    Network(#[from] NetworkError),
    /// A command could not be run in the container.
    #[error("{0}")]
    Exec(#[from] ExecError),
    /// What was asked for before a command cannot be had.
    #[error("exec: {0}")]
    Prefix(#[from] PrefixError),
    /// The task's phase does not allow it.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// The signal does not exist.
    #[error("{0}")]
    Signal(#[from] UnknownSignal),
    /// Nobody knows the task.
    #[error("task {0:?} is not known to this driver")]
    Unknown(String),
    /// Two starts of one id.
    #[error("task with ID {0:?} already started")]
    AlreadyStarted(String),
    /// It was stopped before it ran.
    #[error("the task was stopped while it was starting")]
    Cancelled,
    /// A request that Nomad never sends.
    #[error("{0}")]
    Invalid(String),
    /// The host refused something that it should not.
    #[error("{0}")]
    Internal(String),
}

impl TaskError {
    /// A failure of the host whose own text says all that there is to say.
    pub fn internal(error: impl std::fmt::Display) -> Self {
        Self::Internal(error.to_string())
    }

    /// Whether the same start may succeed later, so that the job's restart policy should try again.
    pub fn recoverable(&self) -> bool {
        match self {
            Self::Pull { error, .. } => error.recoverable(),
            Self::Network(error) => error.recoverable(),
            Self::Internal(_) => true,
            _ => false,
        }
    }
}
