//! Why a command did not do what it was told, and the exit code that says so.

use std::{
    fmt::Display,
    io::{self, Write},
    process::ExitCode,
};

/// See [`super::EXIT_CODES`] for the numbers.
#[derive(Debug)]
pub enum Failure {
    /// Something went wrong.
    Failed(String),
    /// The check has said what is damaged.
    Damage,
    /// No such image.
    Unknown(String),
    /// The image is in use.
    InUse(String),
    /// The reader of our output went away: nothing is left to be said.
    Closed,
}

impl Failure {
    /// Anything that went wrong, as its own text tells it.
    pub fn of(error: impl Display) -> Self {
        Self::Failed(error.to_string())
    }

    /// Writes the reason to standard error.
    pub fn tell(&self) -> ExitCode {
        let (code, text) = match self {
            Self::Failed(text) => (1, text.as_str()),
            Self::Damage => (3, ""),
            Self::Unknown(text) => (4, text.as_str()),
            Self::InUse(text) => (5, text.as_str()),
            Self::Closed => (1, ""),
        };
        if !text.is_empty() && writeln!(io::stderr(), "oci-rs: {text}").is_err() {
            return ExitCode::FAILURE;
        }
        ExitCode::from(code)
    }
}

impl From<io::Error> for Failure {
    /// Errors of standard output; all others are told with their context.
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::Closed;
        }
        Self::Failed(format!("standard output: {error}"))
    }
}
