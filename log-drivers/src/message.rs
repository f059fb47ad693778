//! One message: a line of a container's output, or a part of a long one.

use std::{sync::Arc, time::SystemTime};

/// The output stream of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// One message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Its stream.
    pub source: Source,
    /// Its bytes, without the newline.
    pub line: Vec<u8>,
    /// When it was read. All parts of a line have the time of the first one.
    pub time: SystemTime,
    /// Which part of a line it is; `None` for a whole line.
    pub partial: Option<Partial>,
}

/// The place of a message in a line that is longer than one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partial {
    /// The same for all parts of a line, and different for each line.
    pub id: Arc<str>,
    /// 1 for the first part.
    pub ordinal: u32,
    /// It ends the line.
    pub last: bool,
}
