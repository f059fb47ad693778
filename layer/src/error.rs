//! Why a layer was refused or could not be written.

use std::io;

use rustix::io::Errno;

/// Why a layer was not unpacked.
#[derive(Debug)]
pub enum UnpackError {
    /// Its bytes are broken or ask for something that is not done.
    Refused {
        /// The entry, if it is known, fit for a log.
        entry: Option<String>,
        /// What is wrong with it.
        problem: String,
    },
    /// The file system failed.
    Disk {
        /// The entry, fit for a log.
        entry: String,
        /// What was attempted.
        action: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The bytes stopped coming because the pull was given up.
    Aborted,
}

impl UnpackError {
    pub(crate) fn refused(entry: &[u8], problem: impl Into<String>) -> Self {
        UnpackError::Refused { entry: (!entry.is_empty()).then(|| show(entry)), problem: problem.into() }
    }

    /// Names the entry that was being applied, where the one who failed did not know it.
    pub(crate) fn within(self, name: &[u8]) -> Self {
        match self {
            UnpackError::Refused { entry: None, problem } => Self::refused(name, problem),
            error => error,
        }
    }

    /// Says which entry came before what could not be read.
    pub(crate) fn after(self, name: &[u8]) -> Self {
        match self {
            UnpackError::Refused { entry: None, problem } if !name.is_empty() => {
                UnpackError::Refused { entry: None, problem: format!("{problem} (after entry \"{}\")", show(name)) }
            }
            error => error,
        }
    }

    pub(crate) fn disk(entry: &[u8], action: &'static str, source: io::Error) -> Self {
        // Names and values that no file system can hold are the image's fault, not the machine's.
        if matches!(
            source.raw_os_error().map(Errno::from_raw_os_error),
            Some(Errno::NAMETOOLONG | Errno::INVAL | Errno::TOOBIG | Errno::RANGE | Errno::MLINK | Errno::FBIG)
        ) {
            return Self::refused(entry, format!("{action}: {source}"));
        }
        UnpackError::Disk { entry: show(entry), action, source }
    }
}

impl From<io::Error> for UnpackError {
    /// Errors of the stream; those of the file system are made with their context.
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
