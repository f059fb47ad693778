//! The first line of a plugin's standard output.

use std::path::PathBuf;

/// The first line of a plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handshake {
    /// The unchanged line.
    pub line: String,
    /// The path of the socket on which the plugin listens.
    pub socket: PathBuf,
}

impl Handshake {
    /// Parses the line by the rules of go-plugin's host. The error says why the host would refuse the line.
    pub fn parse(line: &str) -> Result<Self, String> {
        let fields: Vec<&str> = line.split('|').collect();
        match fields.as_slice() {
            ["1", "2", "unix", socket, "grpc", ..] if socket.starts_with('/') => {
                Ok(Self { line: line.to_owned(), socket: socket.into() })
            }
            _ => Err(format!("not 1|2|unix|<socket>|grpc|: {line:?}")),
        }
    }
}
