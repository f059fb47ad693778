//! A socket to the place where a log driver sends to. All calls block.

use std::{
    fs::File,
    io::{self, Write},
    mem::MaybeUninit,
    net::{TcpStream, ToSocketAddrs, UdpSocket},
    os::{
        fd::AsFd,
        unix::net::{UnixDatagram, UnixStream},
    },
    path::Path,
    time::Duration,
};

use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create},
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg},
};

use crate::address::{Address, HostPort};

/// Connecting to one address of a host may take this long.
const CONNECT: Duration = Duration::from_secs(10);

/// A connected socket.
#[derive(Debug)]
pub(crate) enum Connection {
    Udp(UdpSocket),
    Tcp(TcpStream),
    Unix(UnixStream),
    Unixgram(UnixDatagram),
}

impl Connection {
    /// Connects.
    pub fn open(address: &Address) -> io::Result<Self> {
        match address {
            Address::Udp(host) => udp(host).map(Self::Udp),
            Address::Tcp(host) => tcp(host).map(Self::Tcp),
            Address::Unix(path) => UnixStream::connect(path).map(Self::Unix),
            Address::Unixgram(path) => unixgram(path).map(Self::Unixgram),
        }
    }

    /// Sends bytes: one datagram, or all of them over a connection.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Udp(socket) => socket.send(bytes).map(drop),
            Self::Unixgram(socket) => socket.send(bytes).map(drop),
            Self::Tcp(stream) => stream.write_all(bytes),
            Self::Unix(stream) => stream.write_all(bytes),
        }
    }
}

impl Connection {
    /// Sends an entry to journald: one that is too large for a datagram as a sealed file in memory.
    pub fn send_to_journal(&mut self, entry: &[u8]) -> io::Result<()> {
        let Self::Unixgram(socket) = self else { return Err(io::ErrorKind::InvalidInput.into()) };
        match socket.send(entry) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EMSGSIZE | libc::ENOBUFS)) => {
                send_file(socket, entry)
            }
            sent => sent.map(drop),
        }
    }
}

fn send_file(socket: &UnixDatagram, entry: &[u8]) -> io::Result<()> {
    let file = memfd_create("journal-entry", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = File::from(file);
    file.write_all(entry)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL)?;
    let files = [file.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&files));
    sendmsg(socket, &[], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Tries the addresses of a host until one works.
fn first<T>(host: &HostPort, connect: impl Fn(std::net::SocketAddr) -> io::Result<T>) -> io::Result<T> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in (host.host.as_str(), host.port).to_socket_addrs()? {
        match connect(address) {
            Ok(connected) => return Ok(connected),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn tcp(host: &HostPort) -> io::Result<TcpStream> {
    first(host, |address| {
        let stream = TcpStream::connect_timeout(&address, CONNECT)?;
        stream.set_nodelay(true)?;
        Ok(stream)
    })
}

fn udp(host: &HostPort) -> io::Result<UdpSocket> {
    first(host, |address| {
        let socket = UdpSocket::bind(if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
        socket.connect(address)?;
        Ok(socket)
    })
}

fn unixgram(path: &Path) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.connect(path)?;
    Ok(socket)
}
