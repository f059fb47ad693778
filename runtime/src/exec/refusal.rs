//! Why there is no command.

/// Why there is no command.
pub(super) enum Refusal {
    /// The container has ended.
    ContainerGone,
    /// The command cannot be executed. Its standard error has the reason; this is its exit code.
    NotExecuted(i32),
    /// Any other reason.
    Failed(String),
}

impl<E: std::error::Error> From<E> for Refusal {
    fn from(error: E) -> Self {
        Self::Failed(error.to_string())
    }
}
