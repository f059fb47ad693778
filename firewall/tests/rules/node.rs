//! A node with a bridge and containers on it: network namespaces that the test makes, with real sockets.

use std::{
    fs,
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    thread,
};

use firewall::{Bridge, Firewall, Protocol, PublishedPort};
use fixtures::{
    must::Must,
    netns::{TestNetwork, in_namespace},
    random::uuid,
    wait::{patient, seconds},
};

/// The bridge's addresses.
pub const GATEWAY: &str = "172.26.80.1";
const GATEWAY_V6: &str = "fd00:26::1";

/// The node. The test's thread is in its network namespace.
pub struct Node {
    pub network: TestNetwork,
    pub firewall: Arc<Firewall>,
}

/// A container on the bridge.
pub struct Container {
    name: String,
    address: Ipv4Addr,
    address_v6: std::net::Ipv6Addr,
}

impl Node {
    /// A node with a bridge and its rules, or none without root.
    #[allow(clippy::print_stdout, reason = "a skipped test says why")]
    pub fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: network namespaces need root");
            return None;
        }
        let network = TestNetwork::enter();
        run("ip", &["link", "add", "oci-rs", "type", "bridge"]);
        run("ip", &["address", "add", &format!("{GATEWAY}/20"), "dev", "oci-rs"]);
        run("ip", &["address", "add", &format!("{GATEWAY_V6}/64"), "dev", "oci-rs", "nodad"]);
        run("ip", &["link", "set", "oci-rs", "up"]);
        for forwarding in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
            fs::write(Path::new("/proc/sys/net").join(forwarding), "1").must(forwarding);
        }
        let firewall = Arc::new(Firewall::new(bridge()));
        firewall.ensure().must("the rules");
        Some(Self { network, firewall })
    }

    /// Starts a container whose addresses end in this number.
    pub fn container(&self, number: u8) -> Container {
        let container = self.connect("oci-rs", Ipv4Addr::new(172, 26, 80, number), GATEWAY);
        let (name, address) = (container.name.as_str(), container.address_v6);
        run("ip", &["-n", name, "address", "add", &format!("{address}/64"), "dev", "eth0", "nodad"]);
        run("ip", &["-n", name, "route", "add", "default", "via", GATEWAY_V6]);
        container
    }

    /// Starts a container on Nomad's bridge. It listens on port 80.
    pub fn container_of_nomad(&self) -> Container {
        run("ip", &["link", "add", "nomad", "type", "bridge"]);
        run("ip", &["address", "add", "172.26.64.1/20", "dev", "nomad"]);
        run("ip", &["link", "set", "nomad", "up"]);
        let container = self.connect("nomad", Ipv4Addr::new(172, 26, 64, 5), "172.26.64.1");
        let (tcp, udp) = container.inside(|| sockets(container.at(80)));
        answer("nomad", tcp, udp);
        container
    }

    /// Starts a container on a bridge with a subnet of 20 bits.
    fn connect(&self, bridge: &str, address: Ipv4Addr, gateway: &str) -> Container {
        let name = format!("oci-rs-box-{}", &uuid()[..8]);
        let number = address.octets()[3];
        let host = format!("{bridge}-{number}");
        let address_v6 = format!("fd00:26::{number}").parse().must("an address");
        run("ip", &["netns", "add", &name]);
        let container = Container { name, address, address_v6 };
        let name = container.name.as_str();
        run("ip", &["link", "add", &host, "type", "veth", "peer", "name", "eth0", "netns", name]);
        run("ip", &["link", "set", &host, "master", bridge, "up"]);
        // A container reaches its own published port.
        run("ip", &["link", "set", &host, "type", "bridge_slave", "hairpin", "on"]);
        run("ip", &["-n", name, "link", "set", "lo", "up"]);
        run("ip", &["-n", name, "address", "add", &format!("{address}/20"), "dev", "eth0"]);
        run("ip", &["-n", name, "link", "set", "eth0", "up"]);
        run("ip", &["-n", name, "route", "add", "default", "via", gateway]);
        container
    }

    /// Publishes a port.
    pub fn publish(&self, ports: &[PublishedPort]) {
        self.firewall.publish(ports).must("publish");
    }

    /// Withdraws a port.
    pub fn withdraw(&self, ports: &[PublishedPort]) {
        self.firewall.withdraw(ports).must("withdraw");
    }
}

/// The bridge of all tests.
pub fn bridge() -> Bridge {
    Bridge {
        name: "oci-rs".to_owned(),
        subnet: "172.26.80.0/20".parse().must("a subnet"),
        subnet_ipv6: "fd00:26::/64".parse().ok(),
    }
}

impl Container {
    /// Its address and a port.
    pub fn at(&self, port: u16) -> SocketAddr {
        (self.address, port).into()
    }

    /// The same with its IPv6 address.
    pub fn at_v6(&self, port: u16) -> SocketAddr {
        (self.address_v6, port).into()
    }

    /// The network namespace.
    pub fn namespace(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.name)
    }

    /// Runs a function in the container.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        in_namespace(&self.namespace(), work)
    }

    /// Starts servers for TCP and UDP on a port. They answer with this name and the client's address.
    pub fn serve(&self, name: &str, port: u16) {
        for address in [self.at(port), self.at_v6(port)] {
            let (tcp, udp) = self.inside(|| sockets(address));
            answer(name, tcp, udp);
        }
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        Command::new("ip").args(["netns", "delete", &self.name]).status().ok();
    }
}

/// A port of every address, or of one.
pub fn port(host_ip: Option<&str>, host_port: u16, protocol: Protocol, container: SocketAddr) -> PublishedPort {
    let host_ip = host_ip.map(|address| address.parse().must("an address"));
    PublishedPort { host_ip, host_port, protocol, container }
}

/// Opens the sockets of a server.
pub fn sockets(address: SocketAddr) -> (TcpListener, UdpSocket) {
    (TcpListener::bind(address).must("listen"), UdpSocket::bind(address).must("bind"))
}

/// Answers all clients. The threads end with the test's process.
pub fn answer(name: &str, tcp: TcpListener, udp: UdpSocket) {
    let (for_tcp, for_udp) = (name.to_owned(), name.to_owned());
    thread::spawn(move || {
        for stream in tcp.incoming() {
            let Ok(mut stream) = stream else { return };
            if let Ok(peer) = stream.peer_addr() {
                stream.write_all(format!("{for_tcp} {}", peer.ip()).as_bytes()).ok();
            }
        }
    });
    thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((_, peer)) = udp.recv_from(&mut buffer) {
            udp.send_to(format!("{for_udp} {}", peer.ip()).as_bytes(), peer).ok();
        }
    });
}

/// The answer over TCP, or the error.
pub fn tcp(address: SocketAddr) -> String {
    let ask = || -> std::io::Result<String> {
        let limit = patient(seconds(5));
        let mut stream = TcpStream::connect_timeout(&address, limit)?;
        stream.set_read_timeout(Some(limit))?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().unwrap_or_else(|error| format!("{:?}", error.kind()))
}

/// The answer over UDP from a new socket, or the error.
pub fn udp(address: SocketAddr) -> String {
    let unspecified = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(unspecified).must("bind");
    udp_from(&socket, address)
}

/// The answer over UDP, or the error. The socket is connected, so it learns that no process listens.
pub fn udp_from(socket: &UdpSocket, address: SocketAddr) -> String {
    let ask = || -> std::io::Result<String> {
        socket.set_read_timeout(Some(patient(seconds(5))))?;
        socket.connect(address)?;
        socket.send(b"who")?;
        let mut buffer = [0; 64];
        let length = socket.recv(&mut buffer)?;
        Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
    };
    ask().unwrap_or_else(|error| format!("{:?}", error.kind()))
}

/// The node's address with a port.
pub fn node(port: u16) -> SocketAddr {
    (TestNetwork::NODE, port).into()
}

/// The node's IPv6 address with a port.
pub fn node_v6(port: u16) -> SocketAddr {
    (TestNetwork::NODE_V6, port).into()
}

/// The node's loopback address with a port.
pub fn loopback(port: u16) -> SocketAddr {
    (IpAddr::V4(Ipv4Addr::LOCALHOST), port).into()
}

/// Runs a program that must succeed.
pub fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().must(program);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
