//! Why a command failed, and its exit code.

use std::{
    fmt::Display,
    io::{self, Write},
    process::ExitCode,
};

use super::output::printable_lines;

/// The failure of a command. The help of `oci-rs image` lists the exit codes.
#[derive(Debug)]
pub enum Failure {
    /// An error. Exit code 1.
    Failed(String),
    /// The check found damage and reported it. Exit code 3.
    Damage,
    /// Nothing has the name that was given. Exit code 4.
    NotFound(String),
    /// The image is in use. Exit code 5.
    InUse(String),
    /// The reader of stdout closed it. There is nothing to report. Exit code 1.
    Closed,
}

impl Failure {
    /// An error with its own text.
    pub fn of(error: impl Display) -> Self {
        Self::Failed(error.to_string())
    }

    /// The reason; empty if it was reported already.
    pub fn reason(&self) -> &str {
        match self {
            Self::Failed(text) | Self::NotFound(text) | Self::InUse(text) => text,
            Self::Damage | Self::Closed => "",
        }
    }

    /// Writes the reason to stderr, and returns the exit code.
    pub fn report(&self) -> ExitCode {
        let code = match self {
            Self::Failed(_) | Self::Closed => 1,
            Self::Damage => 3,
            Self::NotFound(_) => 4,
            Self::InUse(_) => 5,
        };
        let text = self.reason();
        if !text.is_empty() && writeln!(io::stderr(), "oci-rs: {}", printable_lines(text)).is_err() {
            return ExitCode::FAILURE;
        }
        ExitCode::from(code)
    }
}

impl From<io::Error> for Failure {
    /// An error of stdout. Other errors are converted with their context.
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::Closed;
        }
        Self::Failed(format!("standard output: {error}"))
    }
}
