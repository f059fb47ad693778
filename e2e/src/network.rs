//! The networks of a lane of cases: a network namespace for the agents and tasks (the node), and one for an outside
//! client.
//!
//! The machine's own network therefore never gets a bridge, an address or a rule of an agent or a task. Everything that
//! is left in the node's namespace is a leak. Both namespaces are open files without a name, so they end with the last
//! process of the run.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket},
    os::fd::AsFd,
    path::Path,
    process::{Command, id},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::{Context, Failure, Outcome, api, process};

/// The node's interface to the outside, with its default routes.
pub const INTERFACE: &str = "node0";
/// The node's address.
pub const NODE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
/// The node's IPv6 address. Jobs publish ports on it by `host_network = "six"`.
pub const NODE6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x51, 0, 0, 0, 0, 2);
/// The outside client's address. It has a route to the node, but to no network behind the node.
pub const OUTSIDE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
/// The outside client's IPv6 address.
pub const OUTSIDE6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x51, 0, 0, 0, 0, 1);

const LIMIT: Duration = Duration::from_secs(20);

/// An open network namespace.
#[derive(Debug)]
pub struct Namespace(File);

/// Moves the calling thread, and all processes that it starts later, into a new node namespace. Returns the outside
/// namespace.
///
/// # Errors
/// When the namespaces cannot be made, with the error output of `ip`.
pub fn enter() -> Outcome<Namespace> {
    let (node, outside) = make()?;
    node.join()?;
    Ok(outside)
}

/// Makes a node namespace and the namespace of its outside client.
///
/// # Errors
/// When the namespaces cannot be made, with the error output of `ip`.
pub fn make() -> Outcome<(Namespace, Namespace)> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let node = format!("oci-rs-e2e-{}-{}", id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let outside = format!("{node}-out");
    let made = connect(&node, &outside)
        .and_then(|()| Ok((Namespace::open(&named(&node))?, Namespace::open(&named(&outside))?)));
    for name in [&node, &outside] {
        if Path::new(&named(name)).exists() {
            ip(&["netns", "delete", name])?;
        }
    }
    made
}

/// Whether the node can publish and translate IPv6 addresses. Not every kernel supports this.
#[must_use]
pub fn has_ipv6() -> bool {
    fs::read_to_string("/proc/sys/net/ipv6/conf/all/disable_ipv6").is_ok_and(|text| text.trim() == "0")
        && Command::new("ip6tables")
            .args(["-w", "-t", "nat", "-S"])
            .output()
            .is_ok_and(|output| output.status.success())
}

/// Sends UDP packets until an answer arrives.
///
/// # Errors
/// Without an answer in time.
pub fn ask_udp(address: SocketAddr, question: &str) -> Outcome<String> {
    let any: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(address)?;
    socket.set_read_timeout(Some(Duration::from_millis(500)))?;
    let deadline = Instant::now() + LIMIT;
    let mut answer = [0; 512];
    loop {
        // A lost or refused packet is repeated.
        let length = socket.send(question.as_bytes()).and_then(|_| socket.recv(&mut answer));
        match length {
            Ok(length) => return Ok(String::from_utf8_lossy(&answer[..length]).into_owned()),
            // A packet to a closed port is refused at once, so this polls.
            Err(_) if Instant::now() < deadline => thread::sleep(Duration::from_millis(50)),
            Err(error) => return Err(Failure(format!("no answer from {address} by UDP: {error}"))),
        }
    }
}

impl Namespace {
    /// Opens the namespace at `path`, for example `/proc/PID/ns/net`.
    ///
    /// # Errors
    /// When it does not exist.
    pub fn open(path: &str) -> Outcome<Self> {
        File::open(path).map(Self).context(path)
    }

    /// Runs a function in this namespace. Its sockets belong to the namespace.
    ///
    /// # Errors
    /// Those of `what`.
    pub fn run<T: Send>(&self, what: impl FnOnce() -> Outcome<T> + Send) -> Outcome<T> {
        thread::scope(|scope| {
            let inside = scope.spawn(|| self.join().and_then(|()| what()));
            inside.join().map_err(|_| Failure("the thread in the other namespace panicked".to_owned()))?
        })
    }

    /// Fetches a page from this namespace. It retries until a starting server answers.
    ///
    /// # Errors
    /// With the last failure.
    pub fn fetch(&self, url: &str) -> Outcome<String> {
        let deadline = Instant::now() + LIMIT;
        self.run(|| {
            loop {
                match api::fetch(url) {
                    Err(_) if Instant::now() < deadline => thread::sleep(Duration::from_millis(50)),
                    answer => return answer,
                }
            }
        })
    }

    /// Sends a UDP request from this namespace; see [`ask_udp`].
    ///
    /// # Errors
    /// Without an answer in time.
    pub fn ask_udp(&self, address: &str, question: &str) -> Outcome<String> {
        let address = address.parse().context(address)?;
        self.run(|| ask_udp(address, question))
    }

    /// Answers UDP requests at `port` of this namespace while `meanwhile` runs. The answer is the reversed request and
    /// the sender's address.
    ///
    /// # Errors
    /// Those of `meanwhile`, or when the port is taken.
    pub fn answer_udp<T>(&self, port: u16, meanwhile: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
        const END: &[u8] = b"\0end";
        let socket = self.run(|| Ok(UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port))?))?;
        let own = self.run(|| Ok(UdpSocket::bind((Ipv6Addr::LOCALHOST, 0))?))?;
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut question = [0; 512];
                while let Ok((length, from)) = socket.recv_from(&mut question) {
                    if &question[..length] == END {
                        return;
                    }
                    let text: String = String::from_utf8_lossy(&question[..length]).chars().rev().collect();
                    socket.send_to(format!("{text} to {}", from.ip().to_canonical()).as_bytes(), from).ok();
                }
            });
            let outcome = meanwhile();
            own.send_to(END, (Ipv6Addr::LOCALHOST, port))?;
            outcome
        })
    }

    /// Accepts one connection to a free port of `address` in this namespace, while `call` connects to it. Returns the
    /// client's address.
    ///
    /// # Errors
    /// Those of `call`, or when there was no connection.
    pub fn caller(&self, address: IpAddr, call: impl FnOnce(SocketAddr) -> Outcome) -> Outcome<IpAddr> {
        let listener = self.run(|| Ok(TcpListener::bind((address, 0))?))?;
        let address = listener.local_addr()?;
        thread::scope(|scope| {
            // The request is read to its end, because closing the socket earlier would reset the connection.
            let answer = scope.spawn(|| -> Outcome<IpAddr> {
                let (stream, from) = listener.accept()?;
                let mut request = BufReader::new(&stream);
                let mut line = String::new();
                while request.read_line(&mut line)? > 2 {
                    line.clear();
                }
                (&stream).write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n")?;
                Ok(from.ip())
            });
            let called = call(address);
            if !answer.is_finished() && called.is_err() {
                // This connection ends the waiting thread.
                self.run(|| Ok(std::net::TcpStream::connect(address)?))?;
            }
            let came = answer.join().map_err(|_| Failure("the listener panicked".to_owned()))?;
            called.and(came)
        })
    }

    /// Moves the calling thread, and all processes that it starts later, into this namespace.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn join(&self) -> Outcome {
        move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))
            .context("entering a network namespace")
    }
}

fn connect(node: &str, outside: &str) -> Outcome {
    ip(&["netns", "add", node])?;
    ip(&["netns", "add", outside])?;
    ip(&["-n", node, "link", "add", INTERFACE, "type", "veth", "peer", "name", "out0", "netns", outside])?;
    let ends = [
        (node, INTERFACE, NODE.to_string(), NODE6.to_string()),
        (outside, "out0", OUTSIDE.to_string(), OUTSIDE6.to_string()),
    ];
    for (namespace, interface, four, six) in ends {
        for device in ["lo", interface] {
            ip(&["-n", namespace, "link", "set", device, "up"])?;
        }
        ip(&["-n", namespace, "address", "add", &format!("{four}/24"), "dev", interface])?;
        // Cases that need IPv6 are skipped without it. `nodad`: no other machine can have this address.
        ip(&["-n", namespace, "address", "add", &format!("{six}/64"), "dev", interface, "nodad"]).ok();
    }
    ip(&["-n", node, "route", "add", "default", "via", &OUTSIDE.to_string()])?;
    ip(&["-n", node, "route", "add", "default", "via", &OUTSIDE6.to_string()]).ok();
    Ok(())
}

fn named(namespace: &str) -> String {
    format!("/run/netns/{namespace}")
}

fn ip(args: &[&str]) -> Outcome {
    process::succeed(Command::new("ip").args(args))
}
