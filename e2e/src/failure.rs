//! The error of a test: a text for its reader.

use std::fmt::Display;

/// The reason of a failed case. `?` converts every error with a text into it.
#[derive(Debug)]
pub struct Failure(pub String);

/// The result of a step of a case.
pub type Outcome<T = ()> = Result<T, Failure>;

// `Failure` itself must not implement `Display`, or this would overlap with `From<T> for T`.
impl<E: Display> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

/// Adds the failed action to an error.
pub trait Context<T> {
    /// Puts `what` before the error's text.
    fn context(self, what: impl Display) -> Outcome<T>;
}

impl<T, E: Into<Failure>> Context<T> for Result<T, E> {
    fn context(self, what: impl Display) -> Outcome<T> {
        self.map_err(|error| Failure(format!("{what}: {}", error.into().0)))
    }
}
