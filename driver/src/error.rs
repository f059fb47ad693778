//! The errors of the driver's operations, in the words that the job's author reads.
//!
//! Texts are complete sentences. `rpc::status` only adds a gRPC code.

use image_store::PullError;
use network::NetworkError;
use runtime::{ExecError, StartError, StartErrorKind, VolumeError};

use crate::{config::ConfigErrors, exec_prefix::PrefixError, plan::PlanErrors, signal::UnknownSignal};

/// A failed operation on a task.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// The task block is invalid.
    #[error("{0}")]
    Config(#[from] ConfigErrors),
    /// The task block does not fit the image or the node.
    #[error("{0}")]
    Plan(#[from] PlanErrors),
    /// The image cannot be pulled or loaded.
    #[error("image {image}: {error}")]
    Pull {
        /// The image as the job names it.
        image: String,
        /// The cause.
        error: PullError,
    },
    /// A host path leads out of the allocation's directory.
    #[error("{0}")]
    Confinement(String),
    /// The container cannot be created or its command cannot be executed.
    #[error("{0}")]
    Start(#[from] StartError),
    /// A volume with options cannot be mounted.
    #[error("{0}")]
    Volume(#[from] VolumeError),
    /// The task's own network cannot be created.
    #[error("{0}")]
    Network(#[from] NetworkError),
    /// A command cannot be executed in the container.
    #[error("{0}")]
    Exec(#[from] ExecError),
    /// The options before an exec command are invalid or not allowed.
    #[error("exec: {0}")]
    Prefix(#[from] PrefixError),
    /// The task's phase does not allow the operation.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// The signal does not exist.
    #[error("{0}")]
    Signal(#[from] UnknownSignal),
    /// The plugin does not know the task.
    #[error("task {0:?} is not known to this driver")]
    Unknown(String),
    /// A second start of one task id.
    #[error("task with ID {0:?} already started")]
    AlreadyStarted(String),
    /// The task was stopped before its command ran.
    #[error("the task was stopped while it was starting")]
    Cancelled,
    /// A call that the driver's capabilities do not offer.
    #[error("{0}")]
    NotOffered(&'static str),
    /// A malformed request. Nomad never sends one.
    #[error("{0}")]
    Invalid(String),
    /// An unexpected failure of the host.
    #[error("{0}")]
    Internal(String),
}

/// The reason why a task's phase does not allow an operation. The task is unchanged then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The task does not run yet.
    #[error("task is still starting")]
    StillStarting,
    /// The task no longer runs.
    #[error("task is not running")]
    NotRunning,
    /// The task must be stopped first.
    #[error("task is still running: stop it first, or destroy it with force")]
    StillRunning,
    /// As many commands run in the task as the operator allows.
    #[error(
        "{0} commands run in this task already, which is this node's limit: wait for the end of one, or have the \
         operator raise `exec {{ max_commands }}` in the plugin block"
    )]
    TooManyCommands(usize),
}

/// The text of an error with its causes.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

impl TaskError {
    /// A failure of the host. Its text must be complete.
    pub fn internal(error: impl std::fmt::Display) -> Self {
        Self::Internal(error.to_string())
    }

    /// Whether the node has failed. Other errors are those of a job, of a registry or of a caller.
    pub fn is_of_node(&self) -> bool {
        match self {
            Self::Start(error) => matches!(error.kind, StartErrorKind::Internal | StartErrorKind::Exists),
            Self::Pull { error, .. } => matches!(error, PullError::Store(_) | PullError::DiskFull { .. }),
            Self::Network(_) | Self::Internal(_) => true,
            _ => false,
        }
    }

    /// Whether the same start may succeed later, so that the job's restart policy should try again.
    pub fn recoverable(&self) -> bool {
        match self {
            Self::Pull { error, .. } => error.recoverable(),
            Self::Network(error) => error.recoverable(),
            Self::Volume(error) => error.passing,
            Self::Start(error) => error.kind == StartErrorKind::TimedOut,
            Self::Internal(_) => true,
            _ => false,
        }
    }
}
