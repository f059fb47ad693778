//! Sending messages to a destination.

use std::{
    fs::File,
    io::{self, Read},
    path::PathBuf,
    thread,
    time::{Duration, SystemTime},
};

use crate::{
    address::Address,
    connection::{Connection, TlsFiles},
    delivery::Destination,
    fluentd::{self, Fluentd},
    gelf::Gelf,
    local_time,
    message::Message,
};

/// The sockets of the node's own syslog, in docker's order.
const LOCAL_SYSLOG: [&str; 3] = ["/dev/log", "/var/run/syslog", "/var/run/log"];

/// Sends messages to a destination. A connection that breaks is made again with the next message.
#[derive(Debug)]
pub struct Sink {
    destination: Destination,
    connection: Option<Connection>,
}

impl Sink {
    /// Is not connected yet. `created` is the time when the container was made.
    pub fn new(mut destination: Destination, created: SystemTime) -> Self {
        if let Destination::Gelf(gelf) = &mut destination {
            gelf.extra.insert("_created".to_owned(), local_time::utc(created));
        }
        Self { destination, connection: None }
    }

    /// Connects, unless the destination may be connected later.
    pub fn connect(&mut self) -> io::Result<()> {
        let later = matches!(&self.destination, Destination::Fluentd(fluentd) if fluentd.asynchronous);
        if later { Ok(()) } else { self.connected().map(drop) }
    }

    /// Sends a message; blocks until the destination takes it. As docker does, a new connection is tried when the old
    /// one fails: once, or as often as the driver's options say. After an error the message is lost.
    pub fn send(&mut self, message: &Message) -> io::Result<()> {
        match &self.destination {
            Destination::Syslog(syslog) => match syslog.encode(message) {
                Some(bytes) => self.send_or_reconnect(&bytes),
                None => Ok(()),
            },
            Destination::Journald(journald) => {
                let bytes = journald.encode(message);
                self.send_or_reconnect(&bytes)
            }
            Destination::Gelf(gelf) => match gelf.encode(message) {
                Some(bytes) => self.send_gelf(&gelf.clone(), bytes),
                None => Ok(()),
            },
            Destination::Fluentd(fluentd) => self.send_fluentd(&fluentd.clone(), message),
        }
    }

    fn send_gelf(&mut self, gelf: &Gelf, mut bytes: Vec<u8>) -> io::Result<()> {
        if matches!(gelf.address, Address::Tcp(_)) {
            bytes.push(0);
            let delay = Duration::from_secs(gelf.reconnect_delay);
            return with_retries(gelf.max_reconnect, |_| delay, || self.send_or_reconnect(&bytes));
        }
        let datagrams = gelf.datagrams(&bytes, random());
        let datagrams = datagrams.ok_or_else(|| io::Error::other("the message has too many chunks"))?;
        datagrams.iter().try_for_each(|datagram| self.send_or_reconnect(datagram))
    }

    fn send_fluentd(&mut self, fluentd: &Fluentd, message: &Message) -> io::Result<()> {
        let chunk = fluentd.request_ack.then(|| fluentd::chunk(random()));
        let bytes = fluentd.encode(message, chunk.as_deref())?;
        let wait = |retry| fluentd.wait_before(retry);
        with_retries(fluentd.max_retries, wait, || {
            self.on_a_connection(|sink| {
                let connection = sink.connected()?;
                connection.send(&bytes)?;
                chunk.as_deref().map_or(Ok(()), |chunk| fluentd::await_ack(connection, chunk))
            })
        })
    }

    fn send_or_reconnect(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.on_a_connection(|sink| sink.send_once(bytes))
    }

    /// Sends something on the connection, and again on a new one if that fails.
    fn on_a_connection(&mut self, send: impl Fn(&mut Self) -> io::Result<()>) -> io::Result<()> {
        if self.connection.is_some() && send(self).is_ok() {
            return Ok(());
        }
        self.connection = None;
        let sent = send(self);
        if sent.is_err() {
            self.connection = None;
        }
        sent
    }

    fn send_once(&mut self, bytes: &[u8]) -> io::Result<()> {
        let is_journal = matches!(self.destination, Destination::Journald(_));
        let connection = self.connected()?;
        if is_journal { connection.send_to_journal(bytes) } else { connection.send(bytes) }
    }

    fn connected(&mut self) -> io::Result<&mut Connection> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => match &self.destination {
                Destination::Syslog(syslog) => match &syslog.address {
                    Some(address) => Connection::open(address, &syslog.tls)?,
                    None => local_syslog()?,
                },
                Destination::Gelf(gelf) => plain(&gelf.address)?,
                Destination::Fluentd(fluentd) => {
                    let connection = plain(&fluentd.address)?;
                    connection.set_timeouts(fluentd.read_timeout, fluentd.write_timeout)?;
                    connection
                }
                Destination::Journald(journald) => plain(&Address::Unixgram(journald.socket.clone()))?,
            },
        };
        Ok(self.connection.insert(connection))
    }
}

/// Tries again after a wait, up to `most` times.
fn with_retries(most: u32, wait: impl Fn(u32) -> Duration, mut send: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    let mut retry = 0;
    loop {
        match send() {
            Err(_) if retry < most => {
                retry += 1;
                thread::sleep(wait(retry));
            }
            sent => return sent,
        }
    }
}

/// Random bytes. Without them an id only fails to be unique.
fn random<const COUNT: usize>() -> [u8; COUNT] {
    let mut bytes = [0; COUNT];
    drop(File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes)));
    bytes
}

/// A connection without files for TLS: certificates of the system's authorities are accepted.
fn plain(address: &Address) -> io::Result<Connection> {
    Connection::open(address, &TlsFiles::default())
}

fn local_syslog() -> io::Result<Connection> {
    for path in LOCAL_SYSLOG.map(PathBuf::from) {
        for address in [Address::Unixgram(path.clone()), Address::Unix(path)] {
            if let Ok(connection) = plain(&address) {
                return Ok(connection);
            }
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, format!("none of {} takes messages", LOCAL_SYSLOG.join(", "))))
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        io::{Read, Write},
        mem::MaybeUninit,
        net::{TcpListener, UdpSocket},
        os::{
            fd::AsRawFd,
            unix::net::{UnixDatagram, UnixListener},
        },
        sync::Arc,
    };

    use rustix::net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix, SocketType, recvmsg,
    };
    use tls::rustls::{
        ServerConfig, ServerConnection, StreamOwned,
        pki_types::{PrivateKeyDer, pem::PemObject},
    };

    use super::*;
    use crate::{delivery::ContainerFacts, message::Source, options::LogOptions};

    fn sink(driver: &str, options: &[(&str, &str)]) -> Sink {
        let options = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let options: BTreeMap<String, String> = options;
        let options = LogOptions::read(driver, &options).expect("a driver").expect("options");
        let delivery = options.delivery(&ContainerFacts::default()).expect("a delivery");
        Sink::new(delivery.destination, SystemTime::UNIX_EPOCH)
    }

    fn syslog(address: &str) -> Sink {
        sink("syslog", &[("syslog-address", address)])
    }

    fn message(text: &str) -> Message {
        Message { source: Source::Stdout, line: text.into(), time: SystemTime::now(), partial: None }
    }

    fn ends_with(bytes: &[u8], text: &str) -> bool {
        bytes.ends_with(format!(": {text}\n").as_bytes())
    }

    fn contains(bytes: &[u8], text: &str) -> bool {
        bytes.windows(text.len()).any(|window| window == text.as_bytes())
    }

    #[test]
    fn datagrams_carry_one_message_each() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("log");
        let udp = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let unix = UnixDatagram::bind(&path).expect("a socket");
        let mut to_udp = syslog(&format!("udp://{}", udp.local_addr().expect("its address")));
        let mut to_unix = syslog(&format!("unixgram://{}", path.display()));
        for text in ["one", "two"] {
            to_udp.send(&message(text)).expect("sent");
            to_unix.send(&message(text)).expect("sent");
            let mut buffer = [0; 200];
            let length = udp.recv(&mut buffer).expect("a datagram");
            assert!(ends_with(&buffer[..length], text));
            let length = unix.recv(&mut buffer).expect("a datagram");
            assert!(ends_with(&buffer[..length], text));
        }
    }

    #[test]
    fn a_broken_connection_is_made_again() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let mut sink = syslog(&format!("tcp://{}", listener.local_addr().expect("its address")));
        sink.connect().expect("connected");
        drop(listener.accept().expect("a connection"));
        // The first message after the end of the connection may still be taken by the kernel.
        let mut sent = 0;
        listener.set_nonblocking(true).expect("set");
        let mut received = loop {
            sink.send(&message("again")).expect("sent");
            sent += 1;
            match listener.accept() {
                Ok((stream, _)) => break stream,
                Err(_) => assert!(sent < 1000, "never connected again"),
            }
        };
        received.set_nonblocking(false).expect("set");
        drop(sink);
        let mut bytes = Vec::new();
        received.read_to_end(&mut bytes).expect("the messages");
        assert!(ends_with(&bytes, "again"));
    }

    const CERTIFICATES: &str = "new='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
        openssl req -x509 $new -keyout ca.key -out ca.pem -days 2 -subj /CN=kit-authority
        openssl req $new -keyout leaf.key -out leaf.csr -subj /CN=kit
        echo subjectAltName=IP:127.0.0.1 >leaf.ext
        openssl x509 -req -in leaf.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out leaf.pem -days 2 \
        -extfile leaf.ext";

    /// A server with a certificate of an authority of its own, in the file `ca.pem`. `None` without openssl, which is
    /// an error in CI.
    fn tls_server(directory: &std::path::Path) -> Option<Arc<ServerConfig>> {
        let mut made = std::process::Command::new("sh");
        made.args(["-ec", CERTIFICATES]).current_dir(directory);
        if !made.output().is_ok_and(|output| output.status.success()) {
            fixtures::program::missing("openssl");
            return None;
        }
        let read = |name: &str| std::fs::read(directory.join(name)).expect("a file");
        let chain = ::tls::certificates(&read("leaf.pem")).expect("certificates");
        let key = PrivateKeyDer::from_pem_slice(&read("leaf.key")).expect("a key");
        let provider = Arc::new(::tls::rustls::crypto::ring::default_provider());
        let server = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let server = server.expect("versions").with_no_client_auth().with_single_cert(chain, key);
        Some(Arc::new(server.expect("a server")))
    }

    /// Docker has no option for certificates here: only those of the system's authorities are accepted.
    #[test]
    fn fluentd_with_tls_refuses_an_unknown_certificate() {
        let directory = tempfile::tempdir().expect("a directory");
        let Some(server) = tls_server(directory.path()) else { return };
        let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let address = format!("tls://{}", listener.local_addr().expect("its address"));
        let mut sink = sink("fluentd", &[("fluentd-address", &address)]);
        let connected = thread::spawn(move || sink.connect());
        let connection = ServerConnection::new(server).expect("a connection");
        let mut stream = StreamOwned::new(connection, listener.accept().expect("a client").0);
        let mut text = Vec::new();
        stream.read_to_end(&mut text).expect_err("the client refuses");
        let error = connected.join().expect("the client").expect_err("refused").to_string();
        assert!(error.contains("certificate") && text.is_empty(), "{error}");
    }

    #[test]
    fn tls_needs_a_certificate_that_is_accepted() {
        let directory = tempfile::tempdir().expect("a directory");
        // openssl may be missing here.
        let Some(server) = tls_server(directory.path()) else { return };
        let at = |name: &str| directory.path().join(name);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let address = format!("tcp+tls://{}", listener.local_addr().expect("its address"));
        let ca = at("ca.pem").to_string_lossy().into_owned();
        for (option, accepted) in
            [(("syslog-tls-ca-cert", ca.as_str()), true), (("syslog-tls-skip-verify", ""), true), (("tag", "x"), false)]
        {
            let mut sink = sink("syslog", &[("syslog-address", &address), ("syslog-format", "rfc5424"), option]);
            let sent = thread::spawn(move || sink.send(&message("secret")));
            let mut text = Vec::new();
            let connection = ServerConnection::new(Arc::clone(&server)).expect("a connection");
            let mut stream = StreamOwned::new(connection, listener.accept().expect("a client").0);
            // The client ends without a farewell, or refuses.
            stream.read_to_end(&mut text).ok();
            if !accepted {
                // Docker tries once more, too.
                drop(listener.set_nonblocking(true));
            }
            assert_eq!(sent.join().expect("the client").is_ok(), accepted, "{option:?}");
            assert_eq!(text.ends_with(b" - secret\n"), accepted, "{option:?}");
        }
    }

    #[test]
    fn a_destination_that_is_not_there_is_an_error() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("log");
        let mut sink = syslog(&format!("unix://{}", path.display()));
        sink.connect().expect_err("nothing listens");
        sink.send(&message("lost")).expect_err("nothing listens");
        let listener = UnixListener::bind(&path).expect("a socket");
        sink.send(&message("found")).expect("sent");
        drop(sink);
        let mut bytes = Vec::new();
        listener.accept().expect("a connection").0.read_to_end(&mut bytes).expect("the message");
        assert!(ends_with(&bytes, "found"), "{}", String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn a_full_backlog_is_an_error() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("log");
        let server = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).expect("a socket");
        rustix::net::bind(&server, &SocketAddrUnix::new(&path).expect("an address")).expect("bound");
        rustix::net::listen(&server, 0).expect("listening");
        let mut sinks: Vec<Sink> = (0..3).map(|_| syslog(&format!("unix://{}", path.display()))).collect();
        let connected = sinks.iter_mut().map(|sink| sink.connect().map_err(|error| error.kind()));
        assert_eq!(connected.last(), Some(Err(io::ErrorKind::WouldBlock)));
    }

    #[test]
    fn gelf_messages_end_with_a_zero_over_tcp_and_come_in_chunks_over_udp() {
        let tcp = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let mut to_tcp =
            sink("gelf", &[("gelf-address", &format!("tcp://{}", tcp.local_addr().expect("its address")))]);
        to_tcp.send(&message("one")).expect("sent");
        to_tcp.send(&message("")).expect("nothing to send");
        drop(to_tcp);
        let mut bytes = Vec::new();
        tcp.accept().expect("a connection").0.read_to_end(&mut bytes).expect("the message");
        assert!(
            contains(&bytes, "\"short_message\":\"one\"") && contains(&bytes, "\"_created\":\"1970-01-01T00:00:00Z\"")
        );
        assert_eq!(bytes.iter().filter(|byte| **byte == 0).count(), 1);

        let udp = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let address = format!("udp://{}", udp.local_addr().expect("its address"));
        let mut to_udp = sink("gelf", &[("gelf-address", &address), ("gelf-compression-type", "none")]);
        to_udp.send(&message(&"x".repeat(3000))).expect("sent");
        let mut buffer = [0; 2000];
        let chunks: Vec<Vec<u8>> = (0..3)
            .map(|_| udp.recv(&mut buffer).map(|length| buffer[..length].to_vec()))
            .collect::<io::Result<_>>()
            .expect("chunks");
        let joined: Vec<u8> = chunks.iter().flat_map(|chunk| chunk[12..].to_vec()).collect();
        let value: serde_json::Value = serde_json::from_slice(&joined).expect("JSON");
        assert_eq!(value["short_message"], "x".repeat(3000));
    }

    #[test]
    fn gelf_over_tcp_is_tried_again_as_often_as_the_options_say() {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port");
        let address = format!("tcp://{port}");
        let options = [("gelf-address", address.as_str()), ("gelf-tcp-reconnect-delay", "0")];
        let mut limited = sink("gelf", &[&options[..], &[("gelf-tcp-max-reconnect", "2")]].concat());
        limited.send(&message("lost")).expect_err("nothing listens");
        let mut patient = sink("gelf", &[&options[..], &[("gelf-tcp-max-reconnect", "1000000")]].concat());
        let sender = thread::spawn(move || patient.send(&message("found")));
        let listener = TcpListener::bind(port).expect("a socket");
        let mut bytes = Vec::new();
        let mut stream = listener.accept().expect("a connection").0;
        sender.join().expect("the sender").expect("sent");
        stream.read_to_end(&mut bytes).expect("the message");
        assert!(contains(&bytes, "found"));
    }

    #[test]
    fn fluentd_is_tried_again_as_often_as_the_options_say() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("fluentd");
        let address = format!("unix://{}", path.display());
        let options = [("fluentd-address", address.as_str()), ("fluentd-retry-wait", "1ms")];
        let mut limited = sink("fluentd", &[&options[..], &[("fluentd-max-retries", "2")]].concat());
        limited.connect().expect_err("nothing listens");
        limited.send(&message("lost")).expect_err("nothing listens");
        sink("fluentd", &[&options[..], &[("fluentd-async", "true")]].concat()).connect().expect("it connects later");
        // The server comes while the message is tried again.
        let sender = thread::spawn({
            let mut sink = sink("fluentd", &options);
            move || sink.send(&message("found"))
        });
        let listener = UnixListener::bind(&path).expect("a socket");
        let mut bytes = Vec::new();
        let mut stream = listener.accept().expect("a connection").0;
        sender.join().expect("the sender").expect("sent");
        stream.read_to_end(&mut bytes).expect("the message");
        assert!(contains(&bytes, "found"));
    }

    /// The server takes the message and ends without a word, then it acknowledges another one, then this one.
    #[test]
    fn fluentd_sends_a_message_again_until_it_is_acknowledged() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let address = listener.local_addr().expect("its address").to_string();
        let mut sink = sink(
            "fluentd",
            &[("fluentd-address", &address), ("fluentd-request-ack", "true"), ("fluentd-retry-wait", "1ms")],
        );
        let sender = thread::spawn(move || sink.send(&message("important")));
        let mut chunks = Vec::new();
        for try_number in 0..3 {
            let mut stream = listener.accept().expect("a connection").0;
            let mut bytes = Vec::new();
            let name = loop {
                let mut buffer = [0; 500];
                let length = stream.read(&mut buffer).expect("the message");
                bytes.extend_from_slice(&buffer[..length]);
                let at = bytes.windows(6).position(|window| window == b"chunk\xb8");
                if let Some(name) = at.and_then(|at| bytes.get(at + 6..at + 30)) {
                    break name.to_vec();
                }
            };
            assert!(contains(&bytes, "important"));
            let answer = match try_number {
                0 => Vec::new(),
                1 => b"\x81\xa3ack\xa1x".to_vec(),
                _ => [b"\x81\xa3ack\xb8", name.as_slice()].concat(),
            };
            stream.write_all(&answer).expect("answered");
            chunks.push(name);
            if try_number == 2 {
                sender.join().expect("the sender").expect("acknowledged");
                break;
            }
        }
        assert!(chunks.iter().all(|name| *name == chunks[0]), "a server can tell that it is the same message");
    }

    #[test]
    fn fluentd_waits_for_an_acknowledgement_as_long_as_the_options_say() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let address = listener.local_addr().expect("its address").to_string();
        let mut sink = sink(
            "fluentd",
            &[
                ("fluentd-address", &address),
                ("fluentd-request-ack", "true"),
                ("fluentd-read-timeout", "10ms"),
                ("fluentd-max-retries", "0"),
            ],
        );
        let error = sink.send(&message("lost")).expect_err("no acknowledgement");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
    }

    #[test]
    fn a_message_that_is_no_datagram_reaches_the_journal_as_a_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("journal");
        let socket = UnixDatagram::bind(&path).expect("a socket");
        let mut sink = sink("journald", &[("journald-socket", &path.to_string_lossy())]);
        sink.send(&message("small")).expect("sent");
        let mut buffer = [0; 2000];
        let length = socket.recv(&mut buffer).expect("an entry");
        assert!(contains(&buffer[..length], "MESSAGE=small\n"));
        // Larger than any datagram of a unix socket.
        let large = "x".repeat(1 << 20);
        sink.send(&message(&large)).expect("sent");
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        recvmsg(&socket, &mut [], &mut control, RecvFlags::CMSG_CLOEXEC).expect("a descriptor");
        let file = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        let file = file.expect("a descriptor");
        let entry = std::fs::read(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("the file");
        assert!(contains(&entry, &format!("MESSAGE={large}\n")));
    }
}
