//! Why a layer was refused or could not be written.
//!
//! Low-level modules leave the entry out of their errors; the module that reads the archive adds it.

use std::io;

use rustix::io::Errno;

/// What is wrong with a part of a layer, in words.
pub type Problem = String;

/// Why a layer was not unpacked.
#[derive(Debug)]
pub enum UnpackError {
    /// Its bytes are broken, or they ask for something that is not supported.
    Refused {
        /// The entry, if it is known, fit for a log.
        entry: Option<String>,
        /// What is wrong with it.
        problem: Problem,
    },
    /// The file system failed.
    Disk {
        /// The entry, fit for a log; empty if the failure concerns no entry.
        entry: String,
        /// The attempted action.
        action: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The bytes stopped because the pull was given up.
    Aborted,
}

impl UnpackError {
    /// A refusal. An empty `entry` is an entry that is not known here.
    pub(crate) fn refused(entry: &[u8], problem: impl Into<Problem>) -> Self {
        UnpackError::Refused { entry: (!entry.is_empty()).then(|| show(entry)), problem: problem.into() }
    }

    /// A failed action on an entry that is not known here.
    pub(crate) fn disk(action: &'static str, source: io::Error) -> Self {
        // The image is at fault for names and values that no file system can hold.
        if matches!(
            source.raw_os_error().map(Errno::from_raw_os_error),
            Some(Errno::NAMETOOLONG | Errno::INVAL | Errno::TOOBIG | Errno::RANGE | Errno::MLINK | Errno::FBIG)
        ) {
            return Self::refused(b"", format!("{action}: {source}"));
        }
        UnpackError::Disk { entry: String::new(), action, source }
    }

    /// Names the entry that was being applied, unless the error names one already.
    pub(crate) fn within(self, name: &[u8]) -> Self {
        match self {
            UnpackError::Refused { entry: None, problem } => Self::refused(name, problem),
            UnpackError::Disk { entry, action, source } if entry.is_empty() => {
                UnpackError::Disk { entry: show(name), action, source }
            }
            error => error,
        }
    }

    /// Names the entry that precedes the unreadable bytes.
    pub(crate) fn after(self, name: &[u8]) -> Self {
        match self {
            UnpackError::Refused { entry: None, problem } if !name.is_empty() => {
                UnpackError::Refused { entry: None, problem: format!("{problem} (after entry \"{}\")", show(name)) }
            }
            error => error,
        }
    }
}

impl From<io::Error> for UnpackError {
    /// Errors of the stream. Errors of the file system are made by `UnpackError::disk`.
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionAborted => UnpackError::Aborted,
            io::ErrorKind::UnexpectedEof => UnpackError::refused(b"", "it ends in the middle"),
            _ => UnpackError::Refused { entry: None, problem: error.to_string() },
        }
    }
}

/// A name from an image, fit for a log.
pub(crate) fn show(name: &[u8]) -> String {
    String::from_utf8_lossy(name).chars().take(200).flat_map(char::escape_debug).collect()
}
