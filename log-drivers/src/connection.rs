//! A socket to the place where a log driver sends to. All calls block, except connecting to a unix socket.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    mem::MaybeUninit,
    net::{TcpStream, ToSocketAddrs, UdpSocket},
    os::{
        fd::AsFd,
        unix::net::{UnixDatagram, UnixStream},
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create},
    net::{
        AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
        connect, sendmsg, socket_with,
    },
};

use serde::{Deserialize, Serialize};
use tls::{
    ClientCertificate, Trust,
    rustls::{ClientConnection, StreamOwned, pki_types::ServerName},
};

use crate::address::{Address, HostPort};

/// Connecting to one address of a host may take this long, and each wait of a TLS handshake.
const CONNECT: Duration = Duration::from_secs(10);

/// The files of a connection with TLS.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsFiles {
    /// Certificates that are accepted beside those of the system's authorities.
    pub authorities: Option<PathBuf>,
    /// The certificate that is shown.
    pub certificate: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
    /// Every certificate is accepted.
    pub skip_verify: bool,
}

/// A connected socket.
#[derive(Debug)]
pub(crate) enum Connection {
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
    Udp(UdpSocket),
    Tcp(TcpStream),
    Unix(UnixStream),
    Unixgram(UnixDatagram),
}

impl Connection {
    /// Connects. `files` are those of a connection with TLS.
    pub fn open(address: &Address, files: &TlsFiles) -> io::Result<Self> {
        match address {
            Address::Tls(host) => tls(host, files).map(|stream| Self::Tls(Box::new(stream))),
            Address::Udp(host) => udp(host).map(Self::Udp),
            Address::Tcp(host) => tcp(host).map(Self::Tcp),
            Address::Unix(path) => unix(path).map(Self::Unix),
            Address::Unixgram(path) => unixgram(path).map(Self::Unixgram),
        }
    }

    /// Sends bytes: one datagram, or all of them over a connection.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Udp(socket) => socket.send(bytes).map(drop),
            Self::Unixgram(socket) => socket.send(bytes).map(drop),
            Self::Tcp(stream) => stream.write_all(bytes),
            Self::Tls(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
            Self::Unix(stream) => stream.write_all(bytes),
        }
    }
}

impl Connection {
    /// Limits each later wait of a stream. Datagrams do not wait.
    pub fn set_timeouts(&self, read: Option<Duration>, write: Option<Duration>) -> io::Result<()> {
        let set = |stream: &TcpStream| stream.set_read_timeout(read).and_then(|()| stream.set_write_timeout(write));
        match self {
            Self::Udp(_) | Self::Unixgram(_) => Ok(()),
            Self::Tcp(stream) => set(stream),
            Self::Tls(stream) => set(&stream.sock),
            Self::Unix(stream) => stream.set_read_timeout(read).and_then(|()| stream.set_write_timeout(write)),
        }
    }

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

impl Read for Connection {
    /// Reads what the server answers. Datagrams have no answer.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Udp(_) | Self::Unixgram(_) => Err(io::ErrorKind::InvalidInput.into()),
            Self::Tcp(stream) => stream.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
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

/// Connects, and shakes hands: a certificate that is not accepted is an error here.
fn tls(host: &HostPort, files: &TlsFiles) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
    let read = |path: &Path| {
        fs::read(path).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
    };
    let wrong = |path: &Path, error: String| io::Error::other(format!("{}: {error}", path.display()));
    let listed = match &files.authorities {
        None => Vec::new(),
        Some(path) => ::tls::certificates(&read(path)?).map_err(|error| wrong(path, error.to_string()))?,
    };
    let client = match (&files.certificate, &files.key) {
        (Some(certificate), Some(key)) => {
            let pem = [read(certificate)?, b"\n".to_vec(), read(key)?].concat();
            Some(ClientCertificate::from_pem(&pem).map_err(|error| wrong(certificate, error.to_string()))?)
        }
        _ => None,
    };
    let trust = if files.skip_verify { Trust::Any } else { Trust::Verified { listed } };
    let config = ::tls::config(trust, client).map_err(io::Error::other)?;
    let name = ServerName::try_from(host.host.clone()).map_err(io::Error::other)?;
    let connection = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(connection, tcp(host)?);
    stream.sock.set_read_timeout(Some(CONNECT))?;
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    stream.sock.set_read_timeout(None)?;
    Ok(stream)
}

fn udp(host: &HostPort) -> io::Result<UdpSocket> {
    first(host, |address| {
        let socket = UdpSocket::bind(if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
        socket.connect(address)?;
        Ok(socket)
    })
}

/// Fails at once if the server's backlog is full. A blocking connect would wait for the server without limit.
fn unix(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

fn unixgram(path: &Path) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.connect(path)?;
    Ok(socket)
}
