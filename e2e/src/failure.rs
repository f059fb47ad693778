//! The error of a test: text for the person who reads it.

use std::fmt::Display;

/// Why a case failed. Anything that can be shown becomes one by `?`.
#[derive(Debug)]
pub struct Failure(pub String);

/// What a step of a case gives back.
pub type Outcome<T = ()> = Result<T, Failure>;

// `Failure` itself must not implement `Display`, or this would overlap with `From<T> for T`.
impl<E: Display> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

/// Says what was being done when an error came.
pub trait Context<T> {
    /// Puts `what` before the error's text.
    fn context(self, what: impl Display) -> Outcome<T>;
}

impl<T, E: Into<Failure>> Context<T> for Result<T, E> {
    fn context(self, what: impl Display) -> Outcome<T> {
        self.map_err(|error| Failure(format!("{what}: {}", error.into().0)))
    }
}
