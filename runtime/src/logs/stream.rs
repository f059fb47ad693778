//! The names of a container's output streams.

/// One of a container's two output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OutputStream {
    /// Standard output, and everything of a terminal.
    Stdout,
    /// Standard error.
    Stderr,
}

impl OutputStream {
    /// Both streams.
    pub const ALL: [Self; 2] = [Self::Stdout, Self::Stderr];

    /// The name of the stream in file names and event annotations.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}
