//! Log servers that both drivers send to. What they get is observed.
//!
//! A case selects its messages by its job's id, which must be in `tag`.

use std::{
    io::Read,
    net::{TcpListener, TcpStream, UdpSocket},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use e2e::{Outcome, watch::patient};
use serde_json::Value;

use crate::{mark::END, observed::Observed};

/// The placeholder of an address in a case's HCL begins with this.
pub const PLACEHOLDER: &str = "@LOG:";
/// The fields of a GELF message that differ between any two runs, or that docker knows by another name.
const VOLATILE: [&str; 4] = ["timestamp", "_created", "_image_id", "_image_name"];
/// The most words of a header of syslog.
const HEADER: usize = 7;
const LIMIT: Duration = Duration::from_secs(20);

type Messages = Arc<Mutex<Vec<String>>>;

/// The servers of a run. They end with the process.
pub struct LogServers {
    addresses: Vec<(&'static str, String)>,
    messages: Messages,
}

impl LogServers {
    /// Listens in the network namespace of the calling thread.
    ///
    /// # Errors
    /// When a port cannot be opened.
    pub fn start() -> Outcome<Self> {
        let messages = Messages::default();
        let mut addresses = Vec::new();
        for (name, decode) in [("syslog-udp", syslog as Decode), ("gelf-udp", gelf)] {
            let socket = UdpSocket::bind("127.0.0.1:0")?;
            addresses.push((name, format!("udp://{}", socket.local_addr()?)));
            let messages = messages.clone();
            thread::spawn(move || datagrams(&socket, decode, &messages));
        }
        for (name, scheme, decode) in
            [("syslog-tcp", "tcp://", syslog as Decode), ("gelf-tcp", "tcp://", gelf), ("fluentd", "", fluentd)]
        {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            addresses.push((name, format!("{scheme}{}", listener.local_addr()?)));
            let messages = messages.clone();
            thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let messages = messages.clone();
                    thread::spawn(move || connection(stream, decode, &messages));
                }
            });
        }
        Ok(Self { addresses, messages })
    }

    /// Replaces the placeholders of the addresses.
    #[must_use]
    pub fn fill_in(&self, text: &str) -> String {
        let replace =
            |text: String, (name, address): &(&str, String)| text.replace(&format!("{PLACEHOLDER}{name}@"), address);
        self.addresses.iter().fold(text.to_owned(), replace)
    }

    /// Adds the messages of a job. Those of both streams come in any order, so they are sorted.
    ///
    /// # Errors
    /// When they do not arrive.
    pub fn observe(&self, job: &str, observed: &mut Observed) -> Outcome {
        let of_job = || -> Vec<String> {
            let messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
            messages.iter().filter(|message| message.contains(job)).cloned().collect()
        };
        let complete = || of_job().iter().filter(|message| message.contains(END)).count() == 2;
        let deadline = std::time::Instant::now() + patient(LIMIT);
        while !complete() && std::time::Instant::now() < deadline {
            // The servers have no notification.
            thread::sleep(Duration::from_millis(50));
        }
        let mut messages: Vec<String> = of_job().iter().map(|message| without_numbers(message)).collect();
        messages.sort();
        messages.iter().for_each(|message| observed.add("message", message));
        Ok(())
    }
}

/// The messages at the beginning of the bytes, and the number of their bytes.
type Decode = fn(&[u8]) -> (Vec<String>, usize);

fn datagrams(socket: &UdpSocket, decode: Decode, messages: &Messages) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(length) = socket.recv(&mut buffer) {
        let (decoded, _) = decode(&buffer[..length]);
        messages.lock().unwrap_or_else(PoisonError::into_inner).extend(decoded);
    }
}

fn connection(mut stream: TcpStream, decode: Decode, messages: &Messages) {
    let (mut bytes, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(length) => bytes.extend_from_slice(&buffer[..length]),
        }
        let (decoded, used) = decode(&bytes);
        bytes.drain(..used);
        messages.lock().unwrap_or_else(PoisonError::into_inner).extend(decoded);
    }
}

fn syslog(bytes: &[u8]) -> (Vec<String>, usize) {
    let used = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    (String::from_utf8_lossy(&bytes[..used]).lines().map(str::to_owned).collect(), used)
}

/// Over TCP a zero ends each message.
fn gelf(bytes: &[u8]) -> (Vec<String>, usize) {
    let parse = |part: &[u8]| {
        let mut message: Value = serde_json::from_slice(part).ok()?;
        message.as_object_mut()?.retain(|name, _| !VOLATILE.contains(&name.as_str()));
        Some(message.to_string())
    };
    match bytes.iter().rposition(|byte| *byte == 0) {
        Some(end) => (bytes[..end].split(|byte| *byte == 0).filter_map(parse).collect(), end + 1),
        None => parse(bytes).map_or((Vec::new(), 0), |message| (vec![message], bytes.len())),
    }
}

/// Tag, time and record of each message; only the kind of the time is kept.
fn fluentd(bytes: &[u8]) -> (Vec<String>, usize) {
    let (mut messages, mut used) = (Vec::new(), 0);
    let mut rest = bytes;
    while let Ok(rmpv::Value::Array(parts)) = rmpv::decode::read_value(&mut rest) {
        used = bytes.len() - rest.len();
        let mut record: Vec<String> = Vec::new();
        for (name, value) in parts.get(2).and_then(rmpv::Value::as_map).into_iter().flatten() {
            record.push(format!("{name}={value}"));
        }
        record.sort();
        let tag = parts.first().map(ToString::to_string).unwrap_or_default();
        let time = if parts.get(1).is_some_and(rmpv::Value::is_ext) { "precise" } else { "seconds" };
        messages.push(format!("{tag} {time} {} parts {}", parts.len(), record.join(" ")));
    }
    (messages, used)
}

/// Replaces the time and the process in the header of a syslog message.
fn without_numbers(message: &str) -> String {
    if !message.starts_with('<') {
        return message.to_owned();
    }
    let words =
        message.split(' ').enumerate().map(|(place, word)| if place < HEADER { masked(word) } else { word.into() });
    words.collect::<Vec<String>>().join(" ")
}

/// A word of a header: one that is a number or a time becomes one letter, as the number in `tag[123]:` does.
fn masked(word: &str) -> String {
    if word.contains(|letter: char| letter.is_ascii_digit()) && word.chars().all(|c| "0123456789:-.TZ+".contains(c)) {
        return "N".to_owned();
    }
    let bracketed = word.strip_suffix("]:").and_then(|word| word.rsplit_once('['));
    bracketed.map_or_else(|| word.to_owned(), |(tag, _)| format!("{tag}[N]:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_of_the_header_are_replaced() {
        for (message, expected) in [
            ("<30>Nov 23 09:31:56 job-1/a[29505]: one", "<30>Nov N N job-1/a[N]: one"),
            ("<30>1 2026-11-23T10:31:54Z vm job-1 12025 job-1 - b 2", "<30>1 N vm job-1 N job-1 - b 2"),
            ("{\"a\":1}", "{\"a\":1}"),
        ] {
            assert_eq!(without_numbers(message), expected);
        }
    }

    #[test]
    fn messages_are_decoded_when_they_are_complete() {
        assert_eq!(syslog(b"<1>a\n<2>b"), (vec!["<1>a".to_owned()], 5));
        assert_eq!(gelf(b"{\"b\":1,\"timestamp\":2}\0{\"a\""), (vec!["{\"b\":1}".to_owned()], 22));
        assert_eq!(gelf(b"{\"b\":1}").0.len(), 1, "a datagram");
        assert_eq!(gelf(b"{\"b\":"), (Vec::new(), 0));
        let message = b"\x94\xa1t\x01\x81\xa1b\xa1c\x80";
        let both = [&message[..], &message[..4]].concat();
        assert_eq!(fluentd(&both), (vec!["\"t\" seconds 4 parts \"b\"=\"c\"".to_owned()], message.len()));
    }
}
