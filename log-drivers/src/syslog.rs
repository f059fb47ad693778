//! The driver `syslog`: its options and the formats of its messages.

use std::{collections::BTreeMap, fmt, path::PathBuf, process, time::SystemTime};

use serde::{Deserialize, Serialize};

use crate::{
    address::{Address, HostPort},
    connection::TlsFiles,
    error::OptionError,
    local_time::LocalTime,
    message::{Message, Source},
};

/// The facilities by their names, at the place of their numbers. Docker knows no names for 12 to 15.
const FACILITIES: [&str; 24] = [
    "kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv", "ftp", "", "", "",
    "", "local0", "local1", "local2", "local3", "local4", "local5", "local6", "local7",
];
const DAEMON: u8 = 3;
const DEFAULT_PORT: u16 = 514;

const ERROR: u8 = 3;
const INFORMATIONAL: u8 = 6;

/// The options of the driver, besides those that all drivers have.
pub(crate) const OPTIONS: [&str; 7] = [
    "syslog-address",
    "syslog-facility",
    "syslog-format",
    "syslog-tls-ca-cert",
    "syslog-tls-cert",
    "syslog-tls-key",
    "syslog-tls-skip-verify",
];

/// The layout of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// That of the node's own syslog: without a host name.
    Unix,
    /// RFC 3164.
    Rfc3164,
    /// RFC 5424.
    Rfc5424,
    /// RFC 5424 with microseconds.
    Rfc5424Micro,
}

/// A destination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Syslog {
    /// `None` is the node's own syslog.
    pub address: Option<Address>,
    /// The files of a connection with TLS.
    #[serde(default)]
    pub tls: TlsFiles,
    /// The facility's number.
    pub facility: u8,
    /// The layout of a message.
    pub format: Format,
    /// The name of the program.
    pub tag: String,
    /// The name of the node.
    pub hostname: String,
}

impl Syslog {
    /// Reads the options. The tag and the node's name follow from the container.
    pub(crate) fn read(options: &BTreeMap<String, String>, errors: &mut Vec<OptionError>) -> Self {
        let mut wrong = |option: &str, problem: &str, remedy: &str| {
            let value = options.get(option).map_or("", String::as_str);
            errors.push(OptionError::new(option, format!("{value:?} {problem}"), remedy));
        };
        let text = |option: &str| options.get(option).map(String::as_str).filter(|text| !text.is_empty());
        let address = text("syslog-address").and_then(|address| {
            let parsed = parse_address(address);
            if parsed.is_none() {
                wrong(
                    "syslog-address",
                    "is no address of a syslog server",
                    "write it as in \"udp://log.example:514\", \
                     with tcp://, unix:///path or unixgram:///path where the server listens there",
                );
            }
            parsed
        });
        let facility = text("syslog-facility").map_or(Some(DAEMON), parse_facility).unwrap_or_else(|| {
            wrong(
                "syslog-facility",
                "is no facility",
                "write a name as in \"daemon\" or \"local0\", or a number up to 23",
            );
            DAEMON
        });
        let format = match text("syslog-format") {
            None => Format::Unix,
            Some("rfc3164") => Format::Rfc3164,
            Some("rfc5424") => Format::Rfc5424,
            Some("rfc5424micro") => Format::Rfc5424Micro,
            Some(_) => {
                wrong("syslog-format", "is no format", "write rfc3164, rfc5424 or rfc5424micro");
                Format::Unix
            }
        };
        let path = |option: &str| text(option).map(PathBuf::from);
        let tls = TlsFiles {
            authorities: path("syslog-tls-ca-cert"),
            certificate: path("syslog-tls-cert"),
            key: path("syslog-tls-key"),
            // As with docker, any value will do.
            skip_verify: options.contains_key("syslog-tls-skip-verify"),
        };
        if tls.certificate.is_some() != tls.key.is_some() {
            wrong("syslog-tls-cert", "needs syslog-tls-key beside it, and that one this", "set both, or remove both");
        }
        Self { address, tls, facility, format, tag: String::new(), hostname: String::new() }
    }

    /// A message as the server gets it; `None` for one without text, which is not sent.
    pub(crate) fn encode(&self, message: &Message) -> Option<Vec<u8>> {
        if message.line.is_empty() {
            return None;
        }
        let severity = match message.source {
            Source::Stdout => INFORMATIONAL,
            Source::Stderr => ERROR,
        };
        let priority = self.facility << 3 | severity;
        let mut bytes = self.header(priority, message.time, process::id()).into_bytes();
        bytes.extend_from_slice(&message.line);
        bytes.push(b'\n');
        if self.has_lengths() {
            let length = format!("{} ", bytes.len());
            bytes.splice(..0, length.into_bytes());
        }
        Some(bytes)
    }

    /// Each message begins with its length (RFC 5425, section 4.3).
    fn has_lengths(&self) -> bool {
        matches!(self.address, Some(Address::Tls(_))) && matches!(self.format, Format::Rfc5424 | Format::Rfc5424Micro)
    }

    fn header(&self, priority: u8, time: SystemTime, pid: u32) -> String {
        let Self { tag, hostname, .. } = self;
        let time = LocalTime::of(time);
        let rfc5424 = |time: String| format!("<{priority}>1 {time} {hostname} {tag} {pid} {tag} - ");
        match self.format {
            Format::Unix => format!("<{priority}>{} {tag}[{pid}]: ", time.stamp()),
            Format::Rfc3164 => format!("<{priority}>{} {hostname} {tag}[{pid}]: ", time.stamp()),
            Format::Rfc5424 => rfc5424(time.rfc3339(false)),
            Format::Rfc5424Micro => rfc5424(time.rfc3339(true)),
        }
    }
}

impl fmt::Display for Syslog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Some(address) => write!(f, "syslog at {address}"),
            None => f.write_str("the node's syslog"),
        }
    }
}

/// A text in the header of a message: without control characters, which end a message or change a terminal.
pub(crate) fn header_field(text: &str) -> String {
    text.replace(char::is_control, "_")
}

fn parse_address(text: &str) -> Option<Address> {
    let (scheme, rest) = Address::split(text)?;
    match scheme {
        "udp" => HostPort::parse(rest, Some(DEFAULT_PORT)).map(Address::Udp),
        "tcp" => HostPort::parse(rest, Some(DEFAULT_PORT)).map(Address::Tcp),
        "tcp+tls" => HostPort::parse(rest, Some(DEFAULT_PORT)).map(Address::Tls),
        _ => Address::socket_file(scheme, rest),
    }
}

fn parse_facility(text: &str) -> Option<u8> {
    let named = FACILITIES.iter().position(|name| *name == text);
    let number = named.or_else(|| text.parse().ok()).filter(|number| *number < FACILITIES.len())?;
    u8::try_from(number).ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn read(options: &[(&str, &str)]) -> Result<Syslog, String> {
        let options = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let mut errors = Vec::new();
        let syslog = Syslog::read(&options, &mut errors);
        match errors.first() {
            None => Ok(Syslog { tag: "tag".into(), hostname: "node".into(), ..syslog }),
            Some(error) => Err(format!("{}: {}", error.option, error.problem)),
        }
    }

    #[test]
    fn options_are_read_as_docker_reads_them() {
        let address = |text| read(&[("syslog-address", text)]).map(|read| read.address.map(|found| found.to_string()));
        for (text, expected) in [
            ("udp://10.0.0.1", Ok(Some("udp://10.0.0.1:514"))),
            ("tcp://log.example:1514/path", Ok(Some("tcp://log.example:1514"))),
            ("tcp+tls://log.example", Ok(Some("tcp+tls://log.example:514"))),
            ("unix:///run/log", Ok(Some("unix:///run/log"))),
            ("unixgram:///dev/log", Ok(Some("unixgram:///dev/log"))),
            ("", Ok(None)),
            ("10.0.0.1:514", Err("syslog-address: \"10.0.0.1:514\" is no address of a syslog server")),
            ("foo://x", Err("syslog-address: \"foo://x\" is no address of a syslog server")),
        ] {
            let expected = expected.map(|text| text.map(str::to_owned)).map_err(str::to_owned);
            assert_eq!(address(text), expected, "{text}");
        }
        let facility = |text| read(&[("syslog-facility", text)]).ok().map(|read| read.facility);
        for (text, expected) in
            [("", Some(3)), ("kern", Some(0)), ("local7", Some(23)), ("23", Some(23)), ("24", None), ("x", None)]
        {
            assert_eq!(facility(text), expected, "{text}");
        }
        assert!(read(&[("syslog-format", "rfc1")]).is_err());
    }

    #[test]
    fn messages_have_dockers_form() {
        let encode = |format, facility, source, line: &[u8]| {
            let syslog = read(&[("syslog-format", format), ("syslog-facility", facility)]).expect("options");
            let time = SystemTime::UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_789);
            let encoded = syslog.encode(&Message { source, line: line.to_vec(), time, partial: None });
            encoded.map(|bytes| String::from_utf8_lossy(&bytes).replace(&process::id().to_string(), "PID"))
        };
        let local = LocalTime::of(SystemTime::UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_789));
        let (stamp, time, micro) = (local.stamp(), local.rfc3339(false), local.rfc3339(true));
        let (out, err) = (Source::Stdout, Source::Stderr);
        for (format, facility, source, expected) in [
            ("", "", out, format!("<30>{stamp} tag[PID]: text\n")),
            ("", "", err, format!("<27>{stamp} tag[PID]: text\n")),
            ("rfc3164", "local3", out, format!("<158>{stamp} node tag[PID]: text\n")),
            ("rfc5424", "local3", err, format!("<155>1 {time} node tag PID tag - text\n")),
            ("rfc5424micro", "", out, format!("<30>1 {micro} node tag PID tag - text\n")),
        ] {
            assert_eq!(encode(format, facility, source, b"text"), Some(expected));
        }
        assert_eq!(encode("", "", out, b""), None, "docker sends no empty message");
        let over_tls = |format| {
            let syslog = read(&[("syslog-format", format), ("syslog-address", "tcp+tls://h")]).expect("options");
            let encoded =
                syslog.encode(&Message { source: out, line: b"text".to_vec(), time: SystemTime::now(), partial: None });
            String::from_utf8(encoded.expect("a message")).expect("text")
        };
        let framed = over_tls("rfc5424");
        let (length, message) = framed.split_once(' ').expect("a length");
        assert_eq!(length.parse(), Ok(message.len()), "{framed}");
        assert!(over_tls("rfc3164").starts_with("<30>"), "as with docker");
    }
}
