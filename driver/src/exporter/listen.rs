//! The address at which metrics are served: a TCP port, or a Unix socket for root.

use std::{
    fs, io,
    os::unix::{
        fs::{FileTypeExt, PermissionsExt},
        net::UnixStream,
    },
    path::{Path, PathBuf},
    pin::Pin,
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener},
};

use crate::config::MetricsAddress;

/// A connection.
pub type Connection = Pin<Box<dyn Stream>>;

/// Both directions of a connection.
pub trait Stream: AsyncRead + AsyncWrite + Send {}
impl<S: AsyncRead + AsyncWrite + Send> Stream for S {}

/// An open address.
pub struct Listener {
    socket: Socket,
    address: MetricsAddress,
}

enum Socket {
    Tcp(TcpListener),
    Unix { listener: UnixListener, _file: SocketFile },
}

/// The file of a Unix socket. Dropped, it is removed.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0) {
            tracing::debug!(%error, "metrics socket not removed");
        }
    }
}

impl Listener {
    /// Opens an address. The socket of a process that was killed is replaced.
    pub fn bind(address: &MetricsAddress) -> io::Result<Self> {
        match address {
            MetricsAddress::Tcp(wanted) => {
                let listener = std::net::TcpListener::bind(wanted)?;
                listener.set_nonblocking(true)?;
                let address = MetricsAddress::Tcp(listener.local_addr()?);
                Ok(Self { socket: Socket::Tcp(TcpListener::from_std(listener)?), address })
            }
            MetricsAddress::Unix(path) => {
                remove_dead(path)?;
                let listener = UnixListener::bind(path)?;
                let file = SocketFile(path.clone());
                fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
                Ok(Self { socket: Socket::Unix { listener, _file: file }, address: address.clone() })
            }
        }
    }

    /// The address, with the port that the kernel chose.
    pub fn address(&self) -> &MetricsAddress {
        &self.address
    }

    /// Waits for a connection.
    pub async fn accept(&mut self) -> io::Result<Connection> {
        Ok(match &self.socket {
            Socket::Tcp(listener) => Box::pin(listener.accept().await?.0),
            Socket::Unix { listener, .. } => Box::pin(listener.accept().await?.0),
        })
    }
}

/// Removes a socket to which no process listens. Another file is left, and prevents the use of the path.
fn remove_dead(path: &Path) -> io::Result<()> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    match UnixStream::connect(path) {
        Err(error) if is_socket && error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        _ => Ok(()),
    }
}
