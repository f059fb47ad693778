//! The driver `journald`: its options, and its messages in journald's native protocol.

use std::{collections::BTreeMap, fmt, path::PathBuf};

use serde::{Deserialize, Serialize};

use crate::{
    error::OptionError,
    message::{Message, Source},
};

/// The option of the driver that docker does not have: the path of journald's socket.
pub(crate) const OPTIONS: [&str; 1] = ["journald-socket"];

const SOCKET: &str = "/run/systemd/journal/socket";

const ERROR: u8 = 3;
const INFORMATIONAL: u8 = 6;

/// A destination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Journald {
    /// Journald's socket.
    pub socket: PathBuf,
    /// The fields of every entry that tell of the container.
    pub fields: BTreeMap<String, String>,
}

impl Journald {
    /// Reads the options. The fields follow from the container.
    pub(crate) fn read(options: &BTreeMap<String, String>, errors: &mut Vec<OptionError>) -> Self {
        let socket = PathBuf::from(options.get("journald-socket").map_or(SOCKET, String::as_str));
        if !socket.is_absolute() {
            let problem = format!("{:?} is not an absolute path", socket.display().to_string());
            errors.push(OptionError::new("journald-socket", problem, "begin it with /"));
        }
        Self { socket, fields: BTreeMap::new() }
    }

    /// Whether the socket is the one that journald has by default.
    pub(crate) fn is_default_socket(&self) -> bool {
        self.socket.as_os_str() == SOCKET
    }

    /// A message as an entry.
    pub(crate) fn encode(&self, message: &Message) -> Vec<u8> {
        let priority = match message.source {
            Source::Stdout => INFORMATIONAL,
            Source::Stderr => ERROR,
        };
        let mut bytes = Vec::with_capacity(message.line.len() + 512);
        field(&mut bytes, "PRIORITY", priority.to_string().as_bytes());
        field(&mut bytes, "MESSAGE", &message.line);
        for (name, value) in &self.fields {
            field(&mut bytes, name, value.as_bytes());
        }
        if let Some(partial) = &message.partial {
            field(&mut bytes, "CONTAINER_PARTIAL_ID", partial.id.as_bytes());
            field(&mut bytes, "CONTAINER_PARTIAL_ORDINAL", partial.ordinal.to_string().as_bytes());
            field(&mut bytes, "CONTAINER_PARTIAL_LAST", partial.last.to_string().as_bytes());
            if !partial.last {
                field(&mut bytes, "CONTAINER_PARTIAL_MESSAGE", b"true");
            }
        }
        bytes
    }
}

/// The name of a label or a variable as a field: capital letters, digits and underscores, not beginning with one of
/// these. `None` if nothing is left.
pub(crate) fn field_name(name: &str) -> Option<String> {
    let kept = |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_uppercase() } else { '_' };
    let name: String = name.chars().map(kept).collect();
    let name = name.trim_start_matches('_');
    (!name.is_empty()).then(|| name.to_owned())
}

/// A value with a newline is preceded by its length, others follow an equals sign.
fn field(bytes: &mut Vec<u8>, name: &str, value: &[u8]) {
    bytes.extend_from_slice(name.as_bytes());
    if value.contains(&b'\n') {
        bytes.push(b'\n');
        bytes.extend_from_slice(&(value.len() as u64).to_le_bytes());
    } else {
        bytes.push(b'=');
    }
    bytes.extend_from_slice(value);
    bytes.push(b'\n');
}

impl fmt::Display for Journald {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "journald at {}", self.socket.display())
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::message::Partial;

    #[test]
    fn entries_have_dockers_fields() {
        let fields = BTreeMap::from([("CONTAINER_NAME".to_owned(), "web".to_owned())]);
        let journald = Journald { socket: SOCKET.into(), fields };
        let mut message =
            Message { source: Source::Stderr, line: b"a\xff".to_vec(), time: SystemTime::now(), partial: None };
        assert_eq!(journald.encode(&message), b"PRIORITY=3\nMESSAGE=a\xff\nCONTAINER_NAME=web\n");
        message.source = Source::Stdout;
        message.partial = Some(Partial { id: "i".into(), ordinal: 1, last: false });
        let expected = b"PRIORITY=6\nMESSAGE=a\xff\nCONTAINER_NAME=web\nCONTAINER_PARTIAL_ID=i\n\
            CONTAINER_PARTIAL_ORDINAL=1\nCONTAINER_PARTIAL_LAST=false\nCONTAINER_PARTIAL_MESSAGE=true\n";
        assert_eq!(journald.encode(&message), expected);
        message.partial = Some(Partial { id: "i".into(), ordinal: 2, last: true });
        assert!(journald.encode(&message).ends_with(b"CONTAINER_PARTIAL_ORDINAL=2\nCONTAINER_PARTIAL_LAST=true\n"));
    }

    #[test]
    fn a_value_with_a_newline_has_its_length() {
        let mut bytes = Vec::new();
        field(&mut bytes, "A", b"x\ny");
        assert_eq!(bytes, b"A\n\x03\0\0\0\0\0\0\0x\ny\n");
    }

    #[test]
    fn names_are_made_fit() {
        for (name, expected) in
            [("com.example.team", Some("COM_EXAMPLE_TEAM")), ("__a-1", Some("A_1")), ("_", None), ("ü", None)]
        {
            assert_eq!(field_name(name).as_deref(), expected, "{name}");
        }
    }
}
