//! The network: other hosts' packets, and services that are only for the node.

use std::{
    fs,
    io::Read,
    net::{Ipv4Addr, SocketAddr, TcpStream},
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr as UnixAddress, UnixStream},
    },
    time::Duration,
};

use super::tools::{each, given, given_number};
use crate::{
    attempt::{Attempt, Refusal, Tried},
    sys::{self, call},
};

const OWN_NETWORK: &str = "the socket belongs to the container's own network";
const FAMILY: &str = "only the kernel decides about this family, as with docker";
const PUBLIC: &str = "the service listens on all addresses of the node; a firewall of the operator can refuse it";

/// The attempts of this area.
pub const ALL: &[Attempt] = &[
    Attempt::new("raw socket (ICMP)", || socket(libc::AF_INET, libc::SOCK_RAW, 1)),
    Attempt::new("raw socket (any protocol)", || socket(libc::AF_INET, libc::SOCK_RAW, 255)),
    Attempt::new("raw socket (IPv6: router advertisements)", || socket(libc::AF_INET6, libc::SOCK_RAW, 58)),
    Attempt::new("packet socket (all packets)", || socket(libc::AF_PACKET, libc::SOCK_RAW, 0x0300)),
    Attempt::new("packet socket (forged ARP answers)", || socket(libc::AF_PACKET, libc::SOCK_DGRAM, 0x0608)),
    Attempt::new("socket to the hypervisor (AF_VSOCK)", || socket(libc::AF_VSOCK, libc::SOCK_STREAM, 0)),
    Attempt::new("socket to the kernel's cryptography (AF_ALG)", || socket(libc::AF_ALG, libc::SOCK_SEQPACKET, 0)),
    Attempt::new("socket for keys of IPsec (AF_KEY)", || socket(libc::AF_KEY, libc::SOCK_RAW, 2)),
    Attempt::new("socket for packets without the kernel (AF_XDP)", || socket(44, libc::SOCK_RAW, 0)),
    Attempt::new("socket of Bluetooth", || socket(libc::AF_BLUETOOTH, libc::SOCK_RAW, 1)).harmless(FAMILY),
    Attempt::new("socket of a CAN bus", || socket(libc::AF_CAN, libc::SOCK_RAW, 1)).harmless(FAMILY),
    Attempt::new("socket of TIPC", || socket(libc::AF_TIPC, libc::SOCK_SEQPACKET, 0)).harmless(FAMILY),
    Attempt::new("socket of RDS", || socket(libc::AF_RDS, libc::SOCK_SEQPACKET, 0)).harmless(FAMILY),
    Attempt::new("socket of X.25", || socket(libc::AF_X25, libc::SOCK_SEQPACKET, 0)).harmless(FAMILY),
    Attempt::new("socket of amateur radio (AF_AX25)", || socket(libc::AF_AX25, libc::SOCK_DGRAM, 0)).harmless(FAMILY),
    Attempt::new("socket of SMC", || socket(43, libc::SOCK_STREAM, 0)).harmless(FAMILY),
    Attempt::new("socket of Qualcomm's router (AF_QIPCRTR)", || socket(42, libc::SOCK_DGRAM, 0)).harmless(FAMILY),
    Attempt::new("socket to the audit of the kernel", audit),
    Attempt::new("send an event of a device (NETLINK_KOBJECT_UEVENT)", || message(15, 0x10, 0x5, &[])),
    Attempt::new("add an interface", || message(0, 16, 0x605, &link(0, 0))),
    Attempt::new("read rules of the firewall (nf_tables)", || message(12, 10 << 8 | 1, 0x305, &[2, 0, 0, 0])),
    Attempt::new("read rules of the firewall (iptables)", || {
        let any = socket(libc::AF_INET, libc::SOCK_RAW, 255).or_else(|_| udp())?;
        // IPT_SO_GET_INFO of the table `filter`.
        let mut table = [0_u8; 84];
        table[..6].copy_from_slice(b"filter");
        call!(libc::SYS_getsockopt, any, 0, 64, &table, &[84_u8, 0, 0, 0])
    }),
    Attempt::new("mark packets (SO_MARK)", || option(libc::SOL_SOCKET, libc::SO_MARK)),
    Attempt::new("send with foreign addresses (IP_TRANSPARENT)", || option(libc::SOL_IP, libc::IP_TRANSPARENT)),
    Attempt::new("enlarge a buffer beyond the limit (SO_RCVBUFFORCE)", || {
        option(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE)
    }),
    Attempt::new("see interfaces of the node", || {
        let names = each("/sys/class/net", "");
        let of_the_node = ["node0", "docker0"];
        let seen = names.iter().any(|path| of_the_node.iter().any(|name| path.ends_with(name)));
        if seen { Ok(0) } else { Err(Refusal::Nothing("own ones")) }
    }),
    Attempt::new("connect to an abstract socket of the node", || {
        let address = UnixAddress::from_abstract_name(given("ESCAPE_ABSTRACT"))?;
        UnixStream::connect_addr(&address)?;
        Ok(0)
    }),
    Attempt::new("connect to Docker's socket", || {
        UnixStream::connect("/var/run/docker.sock")?;
        Ok(0)
    }),
    Attempt::new("connect to containerd's socket", || {
        UnixStream::connect("/run/containerd/containerd.sock")?;
        Ok(0)
    }),
    Attempt::new("connect to a service on the node's loopback address", || connect(Ipv4Addr::LOCALHOST)),
    Attempt::new("connect to the node's loopback address by 0.0.0.0", || connect(Ipv4Addr::UNSPECIFIED)),
    Attempt::new("connect to a public service of the node", || {
        let routes = fs::read_to_string("/proc/net/route")?;
        let gateway = |line: &str| {
            let mut words = line.split_whitespace().skip(1);
            (words.next() == Some("00000000")).then(|| u32::from_str_radix(words.next()?, 16).ok()).flatten()
        };
        let address = routes.lines().find_map(gateway).ok_or(Refusal::Nothing("no route"))?;
        connect(Ipv4Addr::from(u32::from_be(address)))
    })
    .harmless(PUBLIC),
    Attempt::new("connect to Nomad's API by its socket", || {
        UnixStream::connect("/secrets/api.sock")?;
        Ok(0)
    })
    .harmless("Nomad makes this socket for the task; it needs the task's token"),
    Attempt::new("socket to the firewall of the container's own network", || {
        socket(libc::AF_NETLINK, libc::SOCK_RAW, 12)
    })
    .harmless(OWN_NETWORK),
    // The last one, because others use the interface.
    Attempt::new("set an interface down", || message(0, 16, 0x5, &link(0, 1))),
];

fn socket(family: i32, kind: i32, protocol: i32) -> Tried {
    call!(libc::SYS_socket, family, kind | libc::SOCK_CLOEXEC, protocol)
}

fn udp() -> Tried {
    socket(libc::AF_INET, libc::SOCK_DGRAM, 0)
}

/// Switches an option of a socket on.
fn option(level: i32, name: i32) -> Tried {
    call!(libc::SYS_setsockopt, udp()?, level, name, &[1_u8, 0, 0, 0], 4)
}

/// `ifinfomsg`: flags and mask of the interface `lo`.
fn link(flags: u8, mask: u8) -> [u8; 16] {
    [0, 0, 0, 0, 1, 0, 0, 0, flags, 0, 0, 0, mask, 0, 0, 0]
}

/// AUDIT_GET: the state of the kernel's audit.
fn audit() -> Tried {
    message(9, 1000, 0x5, &[])
}

/// Sends the kernel a request of a netlink protocol, with the flags REQUEST and ACK. Its answer is the result.
fn message(protocol: i32, kind: u16, flags: u16, body: &[u8]) -> Tried {
    let socket = socket(libc::AF_NETLINK, libc::SOCK_RAW, protocol)?;
    let length = (16 + body.len()) as u32;
    let header =
        [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &flags.to_ne_bytes(), &[1, 0, 0, 0], &[0; 4]].concat();
    let mut request = [0_u8; 64];
    request[..16].copy_from_slice(&header);
    request[16..16 + body.len()].copy_from_slice(body);
    call!(libc::SYS_sendto, socket, &request, length, 0, 0, 0)?;
    let mut answer = [0_u8; 4096];
    sys::receive(socket, &mut answer)?;
    // NLMSG_ERROR with an errno, or 0 for an acknowledgement.
    let error = i32::from_ne_bytes([answer[16], answer[17], answer[18], answer[19]]);
    match (answer[4], error) {
        (2, error) if error != 0 => Err(Refusal::Errno(-error)),
        _ => Ok(0),
    }
}

/// Connects to the node's service, which greets.
fn connect(address: Ipv4Addr) -> Tried {
    let address = SocketAddr::from((address, given_number("ESCAPE_PORT") as u16));
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.read_exact(&mut [0; 4])?;
    Ok(0)
}
