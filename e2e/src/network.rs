//! The networks of a run: a namespace that the whole run moves into, the "node", and one beside it from which a stranger
//! reaches the node.
//!
//! So no bridge, address or rule of an agent or a task is ever the machine's own, and whatever is left in the node's namespace is
//! a leak of ours. Both lose their names as soon as they are held open: they end with the run's last process, however it ends.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket},
    os::fd::AsFd,
    path::Path,
    process::{Command, id},
    thread,
    time::{Duration, Instant},
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::{Context, Failure, Outcome, api};

/// The node's interface to the outside, which has its default routes too.
pub const INTERFACE: &str = "node0";
/// The node's address.
pub const NODE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
/// The node's IPv6 address; jobs publish ports on it by `host_network = "six"`.
pub const NODE6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x51, 0, 0, 0, 0, 2);
/// The stranger's address. It knows the node, and no network behind it.
pub const STRANGER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
/// The stranger's IPv6 address.
pub const STRANGER6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x51, 0, 0, 0, 0, 1);

const LIMIT: Duration = Duration::from_secs(20);

/// A network namespace that is held open.
#[derive(Debug)]
pub struct Namespace(File);

/// Moves the calling thread, and so all that it starts from now on, into a new network with a stranger beside it, who comes back.
///
/// # Errors
/// When namespaces cannot be made here, with the words of `ip`.
pub fn enter() -> Outcome<Namespace> {
    let (node, outside) = (format!("oci-rs-e2e-{}", id()), format!("oci-rs-e2e-{}-out", id()));
    let made = connect(&node, &outside)
        .and_then(|()| Ok((Namespace::open(&named(&node))?, Namespace::open(&named(&outside))?)));
    for name in [&node, &outside] {
        if Path::new(&named(name)).exists() {
            ip(&["netns", "delete", name])?;
        }
    }
    let (node, outside) = made?;
    node.join()?;
    Ok(outside)
}

/// Whether the node can publish and translate IPv6 addresses, which takes a part of the kernel that not every machine has.
#[must_use]
pub fn has_ipv6() -> bool {
    fs::read_to_string("/proc/sys/net/ipv6/conf/all/disable_ipv6").is_ok_and(|text| text.trim() == "0")
        && Command::new("ip6tables")
            .args(["-w", "-t", "nat", "-S"])
            .output()
            .is_ok_and(|output| output.status.success())
}

/// Asks with one UDP packet after the other until an answer comes.
///
/// # Errors
/// When none comes.
pub fn ask_udp(address: SocketAddr, question: &str) -> Outcome<String> {
    let any: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(address)?;
    socket.set_read_timeout(Some(Duration::from_millis(500)))?;
    let deadline = Instant::now() + LIMIT;
    let mut answer = [0; 512];
    loop {
        // A packet that is lost or refused is no failure of the protocol.
        let length = socket.send(question.as_bytes()).and_then(|_| socket.recv(&mut answer));
        match length {
            Ok(length) => return Ok(String::from_utf8_lossy(&answer[..length]).into_owned()),
            // Refused at once where nobody listens yet; nobody tells when that changes.
            Err(_) if Instant::now() < deadline => thread::sleep(Duration::from_millis(50)),
            Err(error) => return Err(Failure(format!("no answer from {address} by UDP: {error}"))),
        }
    }
}

impl Namespace {
    /// The one at `path`, or a process's own: `/proc/PID/ns/net`.
    ///
    /// # Errors
    /// When there is none.
    pub fn open(path: &str) -> Outcome<Self> {
        File::open(path).map(Self).context(path)
    }

    /// Does something with sockets of this namespace.
    ///
    /// # Errors
    /// Those of `what`.
    pub fn run<T: Send>(&self, what: impl FnOnce() -> Outcome<T> + Send) -> Outcome<T> {
        thread::scope(|scope| {
            let inside = scope.spawn(|| self.join().and_then(|()| what()));
            inside.join().map_err(|_| Failure("the thread in another network panicked".to_owned()))?
        })
    }

    /// Fetches a page from there, trying again until a server that is starting answers.
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

    /// Sends a UDP question from there; see [`ask_udp`].
    ///
    /// # Errors
    /// When no answer comes.
    pub fn ask_udp(&self, address: &str, question: &str) -> Outcome<String> {
        let address = address.parse().context(address)?;
        self.run(|| ask_udp(address, question))
    }

    /// Answers UDP questions at `port` there, until `meanwhile` is done, with the question turned round and the asker's address.
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

    /// Waits there for one connection to a free port of `address`, while `call` makes somebody connect to it, and tells who came.
    ///
    /// # Errors
    /// Those of `call`, or when nobody has come by its end.
    pub fn caller(&self, address: IpAddr, call: impl FnOnce(SocketAddr) -> Outcome) -> Outcome<IpAddr> {
        let listener = self.run(|| Ok(TcpListener::bind((address, 0))?))?;
        let address = listener.local_addr()?;
        thread::scope(|scope| {
            // One answer that a web client understands; it is read to its end, so that closing does not reset it.
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
                // Nobody else will come: let the waiting thread go.
                self.run(|| Ok(std::net::TcpStream::connect(address)?))?;
            }
            let came = answer.join().map_err(|_| Failure("the listener panicked".to_owned()))?;
            called.and(came)
        })
    }

    fn join(&self) -> Outcome {
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
        (outside, "out0", STRANGER.to_string(), STRANGER6.to_string()),
    ];
    for (namespace, interface, four, six) in ends {
        for device in ["lo", interface] {
            ip(&["-n", namespace, "link", "set", device, "up"])?;
        }
        ip(&["-n", namespace, "address", "add", &format!("{four}/24"), "dev", interface])?;
        // Where the kernel has no IPv6, cases that need it are skipped. Nobody else is there who could have the address already.
        ip(&["-n", namespace, "address", "add", &format!("{six}/64"), "dev", interface, "nodad"]).ok();
    }
    ip(&["-n", node, "route", "add", "default", "via", &STRANGER.to_string()])?;
    ip(&["-n", node, "route", "add", "default", "via", &STRANGER6.to_string()]).ok();
    Ok(())
}

fn named(namespace: &str) -> String {
    format!("/run/netns/{namespace}")
}

fn ip(args: &[&str]) -> Outcome {
    let output = Command::new("ip").args(args).output().context("ip")?;
    if output.status.success() {
        return Ok(());
    }
    Err(Failure(format!("ip {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim())))
}
