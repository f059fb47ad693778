//! The driver `gelf`: its options, its messages, and the chunks of large datagrams.

use std::{collections::BTreeMap, fmt, io::Write, time::SystemTime};

use flate2::{
    Compression,
    write::{GzEncoder, ZlibEncoder},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{
    address::{Address, HostPort},
    error::OptionError,
    json,
    message::{Message, Source},
};

/// The options of the driver, besides those that all drivers have.
pub(crate) const OPTIONS: [&str; 5] = [
    "gelf-address",
    "gelf-compression-type",
    "gelf-compression-level",
    "gelf-tcp-max-reconnect",
    "gelf-tcp-reconnect-delay",
];

/// Syslog's levels.
const ERROR: u8 = 3;
const INFORMATIONAL: u8 = 6;

/// The bytes of a datagram. A larger message is sent in chunks.
const DATAGRAM: usize = 1420;
const CHUNK_HEADER: usize = 12;
const CHUNK_MAGIC: [u8; 2] = [0x1e, 0x0f];
const MOST_CHUNKS: usize = 128;

/// How a datagram is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompressionType {
    /// gzip (RFC 1952).
    Gzip,
    /// zlib (RFC 1950).
    Zlib,
    /// Not at all.
    None,
}

/// A destination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gelf {
    /// UDP or TCP.
    pub address: Address,
    /// How a datagram is compressed.
    pub compression: CompressionType,
    /// The level, 0 to 9.
    pub level: u32,
    /// With TCP: how often a connection is tried again for one message.
    pub max_reconnect: u32,
    /// With TCP: the seconds before each of these tries.
    pub reconnect_delay: u64,
    /// The name of the node.
    pub hostname: String,
    /// The fields of every message that tell of the container.
    pub extra: BTreeMap<String, String>,
}

impl Gelf {
    /// Reads the options. The other fields follow from the container.
    pub(crate) fn read(options: &BTreeMap<String, String>, errors: &mut Vec<OptionError>) -> Self {
        let text = |option: &str| options.get(option).map(String::as_str);
        let mut wrong = |option: &str, problem: &str, remedy: &str| {
            errors.push(OptionError::new(option, problem, remedy));
        };
        let address = match text("gelf-address").filter(|address| !address.is_empty()) {
            None => {
                wrong("gelf-address", "is missing", "set it as in \"udp://log.example:12201\"");
                None
            }
            Some(address) => {
                let parsed = parse_address(address);
                if parsed.is_none() {
                    let problem = format!("{address:?} is no address of a GELF server");
                    wrong("gelf-address", &problem, "write it as in \"udp://log.example:12201\" or with tcp://");
                }
                parsed
            }
        };
        let is_tcp = matches!(address, Some(Address::Tcp(_)));
        if address.is_some() {
            for option in &OPTIONS[1..] {
                let for_tcp = option.starts_with("gelf-tcp");
                if options.contains_key(*option) && for_tcp != is_tcp {
                    let problem = if for_tcp { "needs an address with tcp://" } else { "needs an address with udp://" };
                    wrong(option, problem, "remove it");
                }
            }
        }
        let compression = match text("gelf-compression-type") {
            None | Some("gzip") => CompressionType::Gzip,
            Some("zlib") => CompressionType::Zlib,
            Some("none") => CompressionType::None,
            Some(other) => {
                let problem = format!("{other:?} is no compression");
                wrong("gelf-compression-type", &problem, "write gzip, zlib or none");
                CompressionType::Gzip
            }
        };
        let mut number = |option: &str, default: i64, allowed: std::ops::RangeInclusive<i64>| match text(option) {
            None => default,
            Some(text) => text.parse().ok().filter(|number| allowed.contains(number)).unwrap_or_else(|| {
                let remedy = format!("write a whole number from {} to {}", allowed.start(), allowed.end());
                wrong(option, &format!("{text:?} is out of range"), &remedy);
                default
            }),
        };
        let level = number("gelf-compression-level", 1, -1..=9);
        let max_reconnect = number("gelf-tcp-max-reconnect", 3, 0..=1_000_000);
        let reconnect_delay = number("gelf-tcp-reconnect-delay", 1, 0..=1_000_000);
        Self {
            address: address.unwrap_or(Address::Udp(HostPort { host: String::new(), port: 0 })),
            compression,
            // -1 is the library's default.
            level: u32::try_from(level).unwrap_or(6),
            max_reconnect: u32::try_from(max_reconnect).unwrap_or(0),
            reconnect_delay: u64::try_from(reconnect_delay).unwrap_or(0),
            hostname: String::new(),
            extra: BTreeMap::new(),
        }
    }

    /// A message as JSON; `None` for one without text, which is not sent.
    pub(crate) fn encode(&self, message: &Message) -> Option<Vec<u8>> {
        if message.line.is_empty() {
            return None;
        }
        let level = match message.source {
            Source::Stdout => INFORMATIONAL,
            Source::Stderr => ERROR,
        };
        let since = message.time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut object = Map::new();
        object.insert("version".into(), json!("1.1"));
        object.insert("host".into(), json!(self.hostname));
        object.insert("short_message".into(), json!(json::text(&message.line)));
        object.insert("timestamp".into(), json!(since.as_millis() as f64 / 1000.0));
        object.insert("level".into(), json!(level));
        object.extend(self.extra.iter().map(|(name, value)| (name.clone(), json!(value))));
        serde_json::to_vec(&Value::Object(object)).ok()
    }

    /// The datagrams of a message; `None` if it is too large. `id` makes the chunks of one message known.
    pub(crate) fn datagrams(&self, message: &[u8], id: [u8; 8]) -> Option<Vec<Vec<u8>>> {
        let compressed = self.compress(message).ok()?;
        if compressed.len() <= DATAGRAM {
            return Some(vec![compressed]);
        }
        let chunks = compressed.chunks(DATAGRAM - CHUNK_HEADER);
        let count = u8::try_from(chunks.len()).ok().filter(|count| usize::from(*count) <= MOST_CHUNKS)?;
        let datagram = |(number, chunk): (u8, &[u8])| [&CHUNK_MAGIC, &id[..], &[number, count], chunk].concat();
        Some((0..count).zip(chunks).map(datagram).collect())
    }

    fn compress(&self, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
        let level = Compression::new(self.level);
        match self.compression {
            CompressionType::None => Ok(bytes.to_vec()),
            CompressionType::Gzip => {
                let mut encoder = GzEncoder::new(Vec::new(), level);
                encoder.write_all(bytes)?;
                encoder.finish()
            }
            CompressionType::Zlib => {
                let mut encoder = ZlibEncoder::new(Vec::new(), level);
                encoder.write_all(bytes)?;
                encoder.finish()
            }
        }
    }
}

impl fmt::Display for Gelf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gelf at {}", self.address)
    }
}

fn parse_address(text: &str) -> Option<Address> {
    let (scheme, rest) = Address::split(text)?;
    let host = HostPort::parse(rest, None)?;
    match scheme {
        "udp" => Some(Address::Udp(host)),
        "tcp" => Some(Address::Tcp(host)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Read, time::Duration};

    use flate2::read::{GzDecoder, ZlibDecoder};

    use super::*;

    fn read(options: &[(&str, &str)]) -> Result<Gelf, String> {
        let options = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let mut errors = Vec::new();
        let gelf = Gelf::read(&options, &mut errors);
        match errors.first() {
            None => Ok(gelf),
            Some(error) => Err(format!("{}: {}", error.option, error.problem)),
        }
    }

    const UDP: (&str, &str) = ("gelf-address", "udp://log.example:12201");
    const TCP: (&str, &str) = ("gelf-address", "tcp://log.example:12201");

    #[test]
    fn options_are_read_as_docker_reads_them() {
        let gelf = read(&[UDP]).expect("options");
        assert_eq!((gelf.compression, gelf.level), (CompressionType::Gzip, 1));
        let gelf = read(&[TCP, ("gelf-tcp-max-reconnect", "7"), ("gelf-tcp-reconnect-delay", "0")]).expect("options");
        assert_eq!((gelf.max_reconnect, gelf.reconnect_delay), (7, 0));
        for (options, expected) in [
            (&[][..], "gelf-address: is missing"),
            (&[("gelf-address", "udp://log.example")], "gelf-address: \"udp://log.example\" is no address"),
            (&[("gelf-address", "http://log.example:1")], "gelf-address: \"http://log.example:1\" is no address"),
            (&[UDP, ("gelf-compression-type", "x")], "gelf-compression-type: \"x\" is no compression"),
            (&[TCP, ("gelf-compression-type", "none")], "gelf-compression-type: needs an address with udp://"),
            (&[UDP, ("gelf-compression-level", "10")], "gelf-compression-level: \"10\" is out of range"),
            (&[UDP, ("gelf-tcp-max-reconnect", "1")], "gelf-tcp-max-reconnect: needs an address with tcp://"),
            (&[TCP, ("gelf-tcp-max-reconnect", "-1")], "gelf-tcp-max-reconnect: \"-1\" is out of range"),
        ] {
            let error = read(options).expect_err(expected);
            assert!(error.starts_with(expected), "{error}");
        }
    }

    fn message(line: &[u8], source: Source) -> Message {
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1_795_427_562_263);
        Message { source, line: line.to_vec(), time, partial: None }
    }

    #[test]
    fn messages_have_dockers_fields() {
        let gelf = Gelf {
            hostname: "node".into(),
            extra: BTreeMap::from([("_tag".into(), "t".into())]),
            ..read(&[UDP]).expect("options")
        };
        let encode = |line: &[u8], source| -> Value {
            serde_json::from_slice(&gelf.encode(&message(line, source)).expect("a message")).expect("JSON")
        };
        let expected = json!({"version": "1.1", "host": "node", "short_message": "a\u{fffd}<b>", "level": 6,
            "timestamp": 1_795_427_562.263, "_tag": "t"});
        assert_eq!(encode(b"a\xff<b>", Source::Stdout), expected);
        assert_eq!(encode(b"a", Source::Stderr)["level"], 3);
        assert_eq!(gelf.encode(&message(b"", Source::Stdout)), None);
    }

    #[test]
    fn large_messages_are_sent_in_chunks() {
        let datagrams = |length: usize| {
            let gelf = read(&[UDP, ("gelf-compression-type", "none")]).expect("options");
            gelf.datagrams(&vec![b'x'; length], *b"12345678")
        };
        assert_eq!(datagrams(1420).map(|datagrams| datagrams.len()), Some(1));
        let chunks = datagrams(1421).expect("chunks");
        assert_eq!(chunks.iter().map(Vec::len).collect::<Vec<_>>(), [1420, 25]);
        assert!(
            chunks[0].starts_with(b"\x1e\x0f12345678\x00\x02x") && chunks[1].starts_with(b"\x1e\x0f12345678\x01\x02x")
        );
        assert_eq!(datagrams(128 * 1408).map(|datagrams| datagrams.len()), Some(128));
        assert_eq!(datagrams(128 * 1408 + 1), None);
    }

    #[test]
    fn datagrams_are_compressed() {
        let text = vec![b'x'; 5000];
        let mut plain = Vec::new();
        let one = |kind, level| {
            let options = [UDP, ("gelf-compression-type", kind), ("gelf-compression-level", level)];
            let datagrams = read(&options).expect("options").datagrams(&text, [0; 8]).expect("datagrams");
            assert_eq!(datagrams.len(), 1);
            datagrams.concat()
        };
        GzDecoder::new(&one("gzip", "-1")[..]).read_to_end(&mut plain).expect("gzip");
        ZlibDecoder::new(&one("zlib", "9")[..]).read_to_end(&mut plain).expect("zlib");
        assert_eq!(plain, text.repeat(2));
    }
}
