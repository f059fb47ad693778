//! The address at which metrics are served: a TCP port, or a Unix socket for root.

use std::{
    fs, io,
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    pin::Pin,
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener},
};

use crate::{config::MetricsAddress, plugin};

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

/// The file of a Unix socket. Dropped, it is removed, unless another process has replaced it.
struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl SocketFile {
    /// Binds a socket that only root can connect to. It gets its name when it listens already, so that no process
    /// meets a socket with other rights, or one that refuses connections.
    fn bind(path: &Path) -> io::Result<(UnixListener, Self)> {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}.tmp", std::process::id()));
        let temporary = PathBuf::from(name);
        // A process with the same id was killed before it renamed its socket.
        match fs::remove_file(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&temporary)?;
        let named = fs::set_permissions(&temporary, fs::Permissions::from_mode(0o600))
            .and_then(|()| fs::symlink_metadata(&temporary))
            .and_then(|metadata| fs::rename(&temporary, path).map(|()| (metadata.dev(), metadata.ino())));
        match named {
            Ok(identity) => Ok((listener, Self { path: path.to_owned(), identity })),
            Err(error) => {
                drop(fs::remove_file(&temporary));
                Err(error)
            }
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let found = fs::symlink_metadata(&self.path).map(|metadata| (metadata.dev(), metadata.ino()));
        let removed = found.and_then(|found| if found == self.identity { fs::remove_file(&self.path) } else { Ok(()) });
        if let Err(error) = removed {
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
                refuse_live(path)?;
                let (listener, file) = SocketFile::bind(path)?;
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

/// An error if the path is a file that is no socket, or a socket to which a process listens. Does not block: a process
/// that is too busy to accept is alive.
fn refuse_live(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is a file that is no socket"));
        }
        Ok(_) => {}
    }
    if plugin::refuses(path) { Ok(()) } else { Err(io::ErrorKind::AddrInUse.into()) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};

    use super::*;

    fn unix(path: &Path) -> io::Result<Listener> {
        Listener::bind(&MetricsAddress::Unix(path.to_owned()))
    }

    #[tokio::test]
    async fn a_socket_belongs_to_the_process_that_bound_it_last() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("m.sock");
        let first = unix(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(UnixStream::connect(&path).is_ok());
        assert_eq!(unix(&path).err().unwrap().kind(), io::ErrorKind::AddrInUse);

        // Another process takes the name while the first one still ends.
        fs::remove_file(&path).unwrap();
        let second = unix(&path).unwrap();
        drop(first);
        assert!(UnixStream::connect(&path).is_ok(), "the successor's socket stays");
        drop(second);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left");
    }

    #[tokio::test]
    async fn a_dead_socket_is_replaced_and_no_other_file_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("m.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists() && unix(&path).is_ok());
        fs::write(&path, "of another program").unwrap();
        assert_eq!(unix(&path).err().unwrap().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "of another program");
    }

    /// A process that accepts nothing and has a full queue makes no other process wait.
    #[tokio::test]
    async fn a_busy_listener_does_not_block() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("m.sock");
        let busy = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        bind(&busy, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&busy, 0).unwrap();
        let _waiting = UnixStream::connect(&path).unwrap();
        assert_eq!(unix(&path).err().unwrap().kind(), io::ErrorKind::AddrInUse);
    }
}
