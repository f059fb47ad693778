//! The driver `fluentd`: its options, and its messages in the forward protocol (MessagePack).

use std::{
    collections::BTreeMap,
    fmt,
    io::{self, Read},
    time::{Duration, SystemTime},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use rmp::{decode, encode};
use serde::{Deserialize, Serialize};

use crate::{
    address::{Address, HostPort},
    error::OptionError,
    message::{Message, Source},
    values::{boolean, buffer, duration},
};

/// The options of the driver, besides those that all drivers have.
pub(crate) const OPTIONS: [&str; 11] = [
    "fluentd-address",
    "fluentd-async",
    "fluentd-async-connect",
    "fluentd-async-reconnect-interval",
    "fluentd-buffer-limit",
    "fluentd-max-retries",
    "fluentd-read-timeout",
    "fluentd-request-ack",
    "fluentd-retry-wait",
    "fluentd-sub-second-precision",
    "fluentd-write-timeout",
];

const DEFAULT_PORT: u16 = 24224;
const BUFFER_LIMIT: u64 = 1 << 20;
/// A wait grows by half with each try, up to this.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// The values of `fluentd-async-reconnect-interval`. Zero is no interval.
const RECONNECT_INTERVALS: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(10);
/// The longest text in an answer of the server.
const LONGEST_ANSWER: u32 = 1024;

/// A destination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fluentd {
    /// TCP, TLS or a unix socket.
    pub address: Address,
    /// The container starts without a connection, and never waits for the server.
    pub asynchronous: bool,
    /// With `asynchronous`: the most bytes that wait.
    pub buffer_limit: u64,
    /// How often a message is tried again.
    pub max_retries: u32,
    /// The wait before the first of these tries.
    pub retry_wait: Duration,
    /// Times have nanoseconds.
    pub sub_second: bool,
    /// The server acknowledges each message. One without an acknowledgement is tried again.
    #[serde(default)]
    pub request_ack: bool,
    /// The longest wait for an acknowledgement.
    #[serde(default)]
    pub read_timeout: Option<Duration>,
    /// The longest wait for the server to take a part of a message.
    #[serde(default)]
    pub write_timeout: Option<Duration>,
    /// The tag.
    pub tag: String,
    /// The fields of every record that tell of the container.
    pub record: BTreeMap<String, String>,
}

impl Fluentd {
    /// Reads the options. The other fields follow from the container.
    pub(crate) fn read(options: &BTreeMap<String, String>, errors: &mut Vec<OptionError>) -> Self {
        let text = |option: &str| options.get(option).map(String::as_str).filter(|text| !text.is_empty());
        let mut wrong = |option: &str, problem: &str, remedy: &str| {
            let value = options.get(option).map_or("", String::as_str);
            errors.push(OptionError::new(option, format!("{value:?} {problem}"), remedy));
        };
        let local = || Address::Tcp(HostPort { host: "127.0.0.1".to_owned(), port: DEFAULT_PORT });
        let address = text("fluentd-address").map_or_else(|| Some(local()), parse_address).unwrap_or_else(|| {
            let remedy = "write it as in \"log.example:24224\", with tls:// or tcp:// before it, or \"unix:///path\"";
            wrong("fluentd-address", "is no address of a fluentd server", remedy);
            local()
        });
        let max_retries = text("fluentd-max-retries").map_or(Some(u32::MAX), |text| text.parse().ok());
        let max_retries = max_retries.unwrap_or_else(|| {
            wrong("fluentd-max-retries", "is no number", "write a whole number");
            u32::MAX
        });
        let limit = "fluentd-buffer-limit";
        let buffer_limit = text(limit).map_or(BUFFER_LIMIT, |text| buffer(limit, text, BUFFER_LIMIT, errors));
        let retry_wait = duration(options, "fluentd-retry-wait", errors).unwrap_or(Duration::from_secs(1));
        check_reconnect_interval(options, errors);
        let mut timeout = |option: &str| duration(options, option, errors).filter(|limit| !limit.is_zero());
        let (read_timeout, write_timeout) = (timeout("fluentd-read-timeout"), timeout("fluentd-write-timeout"));
        let asynchronous =
            boolean(options, "fluentd-async", errors) | boolean(options, "fluentd-async-connect", errors);
        Self {
            address,
            asynchronous,
            buffer_limit,
            max_retries,
            retry_wait,
            sub_second: boolean(options, "fluentd-sub-second-precision", errors),
            request_ack: boolean(options, "fluentd-request-ack", errors),
            read_timeout,
            write_timeout,
            tag: String::new(),
            record: BTreeMap::new(),
        }
    }

    /// The wait before a try, counted from 1.
    pub(crate) fn wait_before(&self, retry: u32) -> Duration {
        let factor = 1.5_f64.powi(i32::try_from(retry - 1).unwrap_or(i32::MAX).min(100));
        Duration::try_from_secs_f64(self.retry_wait.as_secs_f64() * factor).unwrap_or(LONGEST_WAIT).min(LONGEST_WAIT)
    }

    /// A message: an array of tag, time, record, and a map of options. `chunk` asks for an acknowledgement.
    pub(crate) fn encode(&self, message: &Message, chunk: Option<&str>) -> io::Result<Vec<u8>> {
        let mut record: BTreeMap<&str, Value> = BTreeMap::new();
        let source = match message.source {
            Source::Stdout => "stdout",
            Source::Stderr => "stderr",
        };
        record.insert("source", Value::from(source));
        record.insert("log", Value(&message.line));
        let ordinal = message.partial.as_ref().map(|partial| partial.ordinal.to_string()).unwrap_or_default();
        if let Some(partial) = &message.partial {
            record.insert("partial_message", Value::from("true"));
            record.insert("partial_id", Value(partial.id.as_bytes()));
            record.insert("partial_ordinal", Value(ordinal.as_bytes()));
            record.insert("partial_last", Value::from(if partial.last { "true" } else { "false" }));
        }
        record.extend(self.record.iter().map(|(name, value)| (name.as_str(), Value(value.as_bytes()))));
        let since = message.time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut bytes = Vec::new();
        let entries = u32::try_from(record.len()).unwrap_or(u32::MAX);
        encode::write_array_len(&mut bytes, 4).map_err(io::Error::other)?;
        encode::write_str(&mut bytes, &self.tag).map_err(io::Error::other)?;
        if self.sub_second {
            // The extension type `EventTime`: seconds and nanoseconds.
            encode::write_ext_meta(&mut bytes, 8, 0).map_err(io::Error::other)?;
            bytes.extend_from_slice(&u32::try_from(since.as_secs()).unwrap_or(u32::MAX).to_be_bytes());
            bytes.extend_from_slice(&since.subsec_nanos().to_be_bytes());
        } else {
            encode::write_uint(&mut bytes, since.as_secs()).map_err(io::Error::other)?;
        }
        encode::write_map_len(&mut bytes, entries).map_err(io::Error::other)?;
        for (name, Value(value)) in record {
            encode::write_str(&mut bytes, name).map_err(io::Error::other)?;
            // The bytes of a line need not be text, but servers expect the type of texts.
            encode::write_str_len(&mut bytes, u32::try_from(value.len()).unwrap_or(u32::MAX))
                .map_err(io::Error::other)?;
            bytes.extend_from_slice(value);
        }
        encode::write_map_len(&mut bytes, u32::from(chunk.is_some())).map_err(io::Error::other)?;
        if let Some(chunk) = chunk {
            encode::write_str(&mut bytes, "chunk").map_err(io::Error::other)?;
            encode::write_str(&mut bytes, chunk).map_err(io::Error::other)?;
        }
        Ok(bytes)
    }
}

/// The name of a message for its acknowledgement.
pub(crate) fn chunk(random: [u8; 16]) -> String {
    BASE64_STANDARD.encode(random)
}

/// Reads the server's acknowledgement of a message: a map with the message's name as `ack`.
pub(crate) fn await_ack(mut answer: impl Read, chunk: &str) -> io::Result<()> {
    let entries = decode::read_map_len(&mut answer).map_err(unreadable)?;
    let mut acknowledged = None;
    for _ in 0..entries.min(16) {
        let (name, value) = (read_text(&mut answer)?, read_text(&mut answer)?);
        if name == "ack" {
            acknowledged = Some(value);
        }
    }
    match acknowledged {
        Some(ack) if ack == chunk => Ok(()),
        _ => Err(io::Error::other("the server acknowledged another message")),
    }
}

fn read_text(answer: &mut impl Read) -> io::Result<String> {
    let length = decode::read_str_len(answer).map_err(unreadable)?;
    if length > LONGEST_ANSWER {
        return Err(io::Error::other("the server's acknowledgement is too long"));
    }
    let mut text = Vec::new();
    answer.take(u64::from(length)).read_to_end(&mut text)?;
    String::from_utf8(text).map_err(io::Error::other)
}

fn unreadable(error: decode::ValueReadError) -> io::Error {
    match error {
        decode::ValueReadError::InvalidMarkerRead(error) | decode::ValueReadError::InvalidDataRead(error) => error,
        other => io::Error::other(format!("the server's acknowledgement cannot be read: {other}")),
    }
}

/// Between two connections of an asynchronous delivery. The wait between two tries does the same here.
fn check_reconnect_interval(options: &BTreeMap<String, String>, errors: &mut Vec<OptionError>) {
    let option = "fluentd-async-reconnect-interval";
    let interval = duration(options, option, errors).filter(|interval| !interval.is_zero());
    if interval.is_some_and(|interval| !RECONNECT_INTERVALS.contains(&interval)) {
        errors.push(OptionError::new(option, "is out of range", "write 100ms to 10s, or remove it"));
    }
}

/// The bytes of a value of a record.
struct Value<'a>(&'a [u8]);

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Self(text.as_bytes())
    }
}

impl fmt::Display for Fluentd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fluentd at {}", self.address)
    }
}

fn parse_address(text: &str) -> Option<Address> {
    let text = if text.contains("://") { text.to_owned() } else { format!("tcp://{text}") };
    let (scheme, rest) = Address::split(&text)?;
    match scheme {
        // Docker refuses a path.
        "tcp" if text.ends_with(rest) => HostPort::parse(rest, Some(DEFAULT_PORT)).map(Address::Tcp),
        "tls" if text.ends_with(rest) => HostPort::parse(rest, Some(DEFAULT_PORT)).map(Address::Tls),
        "unix" => Address::socket_file(scheme, rest),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Partial;

    fn read(options: &[(&str, &str)]) -> Result<Fluentd, String> {
        let options = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let mut errors = Vec::new();
        let fluentd = Fluentd::read(&options, &mut errors);
        match errors.first() {
            None => Ok(fluentd),
            Some(error) => Err(format!("{}: {}", error.option, error.problem)),
        }
    }

    #[test]
    fn options_are_read_as_docker_reads_them() {
        let address = |text| read(&[("fluentd-address", text)]).map(|fluentd| fluentd.address.to_string());
        for (text, expected) in [
            ("", Some("tcp://127.0.0.1:24224")),
            ("log.example", Some("tcp://log.example:24224")),
            ("log.example:1", Some("tcp://log.example:1")),
            ("tcp://log.example:1", Some("tcp://log.example:1")),
            ("unix:///run/fluentd", Some("unix:///run/fluentd")),
            ("tls://log.example", Some("tcp+tls://log.example:24224")),
            ("tls://log.example:1/x", None),
            ("log.example:1/x", None),
            ("http://log.example", None),
            ("unix://", None),
        ] {
            assert_eq!(address(text).ok().as_deref(), expected, "{text}");
        }
        let fluentd = read(&[
            ("fluentd-async", "true"),
            ("fluentd-buffer-limit", "4m"),
            ("fluentd-retry-wait", "1.5s"),
            ("fluentd-max-retries", "3"),
            ("fluentd-sub-second-precision", "1"),
            ("fluentd-request-ack", "true"),
            ("fluentd-read-timeout", "2s"),
            ("fluentd-write-timeout", "0"),
            ("fluentd-async-reconnect-interval", "100ms"),
        ]);
        let fluentd = fluentd.expect("options");
        assert!(fluentd.asynchronous && fluentd.sub_second && fluentd.request_ack);
        assert_eq!((fluentd.read_timeout, fluentd.write_timeout), (Some(Duration::from_secs(2)), None));
        assert_eq!((fluentd.buffer_limit, fluentd.max_retries), (4 << 20, 3));
        assert_eq!(fluentd.retry_wait, Duration::from_millis(1500));
        for option in OPTIONS {
            assert!(read(&[(option, "x://")]).is_err(), "{option}");
        }
        for interval in ["99ms", "11s"] {
            let error = read(&[("fluentd-async-reconnect-interval", interval)]).expect_err("refused");
            assert_eq!(error, "fluentd-async-reconnect-interval: is out of range");
        }
    }

    #[test]
    fn waits_grow_by_half() {
        let fluentd = read(&[]).expect("options");
        let waits: Vec<f64> =
            [1, 2, 3, 4, 100, u32::MAX].map(|retry| fluentd.wait_before(retry).as_secs_f64()).to_vec();
        assert_eq!(waits, [1.0, 1.5, 2.25, 3.375, 60.0, 60.0]);
    }

    #[test]
    fn messages_have_dockers_form() {
        let base = read(&[]).expect("options");
        let record = BTreeMap::from([("container_id".to_owned(), "c".to_owned())]);
        let fluentd = Fluentd { tag: "t".into(), record, ..base };
        let time = SystemTime::UNIX_EPOCH + Duration::new(1_795_427_568, 7);
        let mut message = Message { source: Source::Stdout, line: b"a\xff".to_vec(), time, partial: None };
        let whole = fluentd.encode(&message, None).expect("encoded");
        let expected =
            b"\x94\xa1t\xce\x6b\x04\x0c\xf0\x83\xaccontainer_id\xa1c\xa3log\xa2a\xff\xa6source\xa6stdout\x80";
        assert_eq!(whole, expected, "{}", String::from_utf8_lossy(&whole));
        let precise = Fluentd { sub_second: true, ..fluentd.clone() }.encode(&message, None).expect("encoded");
        assert!(precise.starts_with(b"\x94\xa1t\xd7\x00\x6b\x04\x0c\xf0\x00\x00\x00\x07\x83"));
        message.partial = Some(Partial { id: "i".into(), ordinal: 2, last: true });
        let part = fluentd.encode(&message, None).expect("encoded");
        let has = |field: &[u8]| part.windows(field.len()).any(|window| window == field);
        for field in [
            &b"\xafpartial_message\xa4true"[..],
            b"\xaapartial_id\xa1i",
            b"\xafpartial_ordinal\xa12",
            b"\xacpartial_last\xa4true",
        ] {
            assert!(has(field), "{}", String::from_utf8_lossy(field));
        }
    }

    #[test]
    fn an_acknowledgement_names_its_message() {
        let chunk = chunk([7; 16]);
        let message =
            Message { source: Source::Stdout, line: b"a".to_vec(), time: SystemTime::UNIX_EPOCH, partial: None };
        let encoded = read(&[]).expect("options").encode(&message, Some(&chunk)).expect("encoded");
        assert!(encoded.ends_with(&[b"\x81\xa5chunk\xb8", chunk.as_bytes()].concat()));
        let answer = |ack: &str| [&b"\x81\xa3ack"[..], &[0xa0 | ack.len() as u8], ack.as_bytes()].concat();
        assert!(await_ack(&answer(&chunk)[..], &chunk).is_ok());
        let long = [&b"\x81\xa3ack\xda\xff\xff"[..], &[b'x'; 0xffff]].concat();
        for (given, expected) in [
            (answer("another"), "acknowledged another message"),
            (b"\x80".to_vec(), "acknowledged another message"),
            (b"\xc0".to_vec(), "cannot be read"),
            (long, "is too long"),
            (Vec::new(), ""),
        ] {
            let error = await_ack(&given[..], &chunk).expect_err(expected);
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
