//! Where a log driver sends to, as docker's options write it.

use std::{fmt, path::PathBuf};

use serde::{Deserialize, Serialize};

/// A host and a port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPort {
    /// A name or an address; an IPv6 address without its brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl HostPort {
    /// Parses `host:port`, `[address]:port`, or without a port if there is a default.
    pub(crate) fn parse(text: &str, default: Option<u16>) -> Option<Self> {
        let (host, port) = match text.strip_prefix('[').map(|rest| rest.split_once(']')) {
            Some(bracketed) => {
                let (host, rest) = bracketed?;
                (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
            }
            None => match text.rsplit_once(':') {
                Some((host, _)) if host.contains(':') => return None,
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        let port = match port {
            Some(port) => port.parse().ok()?,
            None => default?,
        };
        (!host.is_empty()).then(|| Self { host: host.to_owned(), port })
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// A place to send to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Address {
    /// Datagrams.
    Udp(HostPort),
    /// A connection.
    Tcp(HostPort),
    /// A connection with TLS.
    Tls(HostPort),
    /// A connection to a unix socket.
    Unix(PathBuf),
    /// Datagrams to a unix socket.
    Unixgram(PathBuf),
}

impl Address {
    /// The scheme and the rest of `scheme://rest`, without a path after host and port.
    pub(crate) fn split(text: &str) -> Option<(&str, &str)> {
        let (scheme, rest) = text.split_once("://")?;
        let is_file = scheme == "unix" || scheme == "unixgram";
        let end = if is_file { rest.len() } else { rest.find(['/', '?', '#']).unwrap_or(rest.len()) };
        Some((scheme, rest.get(..end)?))
    }

    /// A unix socket, if `scheme` names one and `path` is absolute.
    pub(crate) fn socket_file(scheme: &str, path: &str) -> Option<Self> {
        let path = Some(PathBuf::from(path)).filter(|path| path.is_absolute())?;
        match scheme {
            "unix" => Some(Self::Unix(path)),
            "unixgram" => Some(Self::Unixgram(path)),
            _ => None,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Udp(host) => write!(f, "udp://{host}"),
            Self::Tcp(host) => write!(f, "tcp://{host}"),
            Self::Tls(host) => write!(f, "tcp+tls://{host}"),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Unixgram(path) => write!(f, "unixgram://{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_ports() {
        let shown = |text, default| HostPort::parse(text, default).map(|parsed| parsed.to_string());
        for (text, default, expected) in [
            ("a.example:1514", None, Some("a.example:1514")),
            ("a.example", Some(514), Some("a.example:514")),
            ("a.example", None, None),
            ("[::1]:7", None, Some("[::1]:7")),
            ("[::1]", Some(514), Some("[::1]:514")),
            ("[::1]x", Some(514), None),
            ("::1", Some(514), None),
            (":514", None, None),
            ("a:b", None, None),
            ("a:70000", None, None),
        ] {
            assert_eq!(shown(text, default).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn a_path_after_the_port_is_ignored_and_a_socket_needs_one() {
        assert_eq!(Address::split("udp://h:1/x?y"), Some(("udp", "h:1")));
        assert_eq!(Address::split("unix:///run/a b?c"), Some(("unix", "/run/a b?c")));
        assert_eq!(Address::split("h:1"), None);
        assert_eq!(
            Address::socket_file("unix", "/run/s").map(|address| address.to_string()),
            Some("unix:///run/s".into())
        );
        assert_eq!(Address::socket_file("unixgram", "run/s"), None);
        assert_eq!(Address::socket_file("udp", "/run/s"), None);
    }
}
