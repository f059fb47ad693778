//! Errors of streams, as `std::io` has them.

use std::io;

/// The stream is broken or breaks a limit.
pub(crate) fn corrupt(problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem.to_owned())
}

/// The sender is gone. The reader must not take the bytes so far for the whole stream.
pub fn aborted() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the pull was given up")
}
