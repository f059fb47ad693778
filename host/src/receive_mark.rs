//! The low-water mark of a TCP connection that a library owns: how many bytes must arrive before the kernel wakes the
//! reader (`SO_RCVLOWAT`, socket(7)).
//!
//! - A connection is found by its two addresses, among the descriptors of this process.
//! - The mark is 1 again when the value is dropped, so that the next short answer wakes the reader.

use std::{
    fs, io,
    net::SocketAddr,
    os::fd::{AsFd, OwnedFd},
};

use rustix::{
    net::{SocketAddrAny, getpeername, getsockname},
    process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open},
};

use crate::sys;

/// The low-water mark of a connection.
#[derive(Debug)]
pub struct ReceiveMark {
    /// A copy of the descriptor that the library has.
    socket: OwnedFd,
    bytes: u32,
}

impl ReceiveMark {
    /// The mark of this process's connection with these addresses; `None`: it has no such connection.
    pub fn find(local: SocketAddr, remote: SocketAddr) -> io::Result<Option<Self>> {
        let process = pidfd_open(getpid(), PidfdFlags::empty())?;
        for entry in fs::read_dir("/proc/self/fd")? {
            let entry = entry?;
            // `socket:[INODE]` (proc_pid_fd(5)).
            let is_socket =
                fs::read_link(entry.path()).is_ok_and(|target| target.to_string_lossy().starts_with("socket:"));
            let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let (true, Some(number)) = (is_socket, number) else { continue };
            // Another thread may close the descriptor, and open another socket. So the addresses are those of the copy.
            let Ok(socket) = pidfd_getfd(process.as_fd(), number, PidfdGetfdFlags::empty()) else { continue };
            if connects(&socket, local, remote) {
                return Ok(Some(Self { socket, bytes: 1 }));
            }
        }
        Ok(None)
    }

    /// Sets the mark, at least to 1. If that many bytes are there, the kernel wakes the reader. The receive buffer
    /// grows to at least twice the mark (`tcp_set_rcvlowat` in net/ipv4/tcp.c).
    pub fn set(&mut self, bytes: u32) -> io::Result<()> {
        let bytes = bytes.max(1);
        if bytes != self.bytes {
            sys::set_receive_mark(&self.socket, bytes)?;
            self.bytes = bytes;
        }
        Ok(())
    }
}

impl Drop for ReceiveMark {
    fn drop(&mut self) {
        // The kernel refuses only negative values (sk_setsockopt in net/core/sock.c).
        self.set(1).ok();
    }
}

fn connects(socket: &OwnedFd, local: SocketAddr, remote: SocketAddr) -> bool {
    let is = |address: Option<SocketAddrAny>, expected| {
        address.and_then(|address| SocketAddr::try_from(address).ok()) == Some(expected)
    };
    is(getsockname(socket).ok(), local) && is(getpeername(socket).ok().flatten(), remote)
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
    };

    use rustix::{
        event::{PollFd, PollFlags, Timespec, poll},
        io::ioctl_fionread,
    };

    use super::*;

    /// Both ends of a connection: ours, and the peer's.
    fn connection(listener: &TcpListener) -> (TcpStream, TcpStream) {
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (ours, listener.accept().unwrap().0)
    }

    fn mark_of(stream: &TcpStream) -> ReceiveMark {
        ReceiveMark::find(stream.local_addr().unwrap(), stream.peer_addr().unwrap()).unwrap().unwrap()
    }

    fn is_readable(stream: &TcpStream, timeout: Option<&Timespec>) -> bool {
        poll(&mut [PollFd::new(stream, PollFlags::IN)], timeout).unwrap() > 0
    }

    #[test]
    fn a_reader_is_woken_when_as_many_bytes_are_there_as_the_mark_says() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (other, _other_peer) = connection(&listener);
        let (mut ours, mut peer) = connection(&listener);
        let mut mark = mark_of(&ours);
        mark.set(1000).unwrap();
        peer.write_all(&[7; 999]).unwrap();
        while ioctl_fionread(&ours).unwrap() < 999 {
            std::thread::yield_now();
        }
        assert!(!is_readable(&ours, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })));
        peer.write_all(&[7]).unwrap();
        assert!(is_readable(&ours, None));
        assert_eq!(ours.read(&mut [0; 1000]).unwrap(), 1000);

        // The other connection has a mark of its own, and without the value the mark is 1 again.
        mark_of(&other).set(5000).unwrap();
        mark.set(5000).unwrap();
        peer.write_all(&[7]).unwrap();
        drop(mark);
        assert!(is_readable(&ours, None));
    }

    #[test]
    fn the_end_of_a_connection_wakes_its_reader() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (ours, peer) = connection(&listener);
        let mut mark = mark_of(&ours);
        mark.set(1000).unwrap();
        drop(peer);
        assert!(is_readable(&ours, None));
    }

    #[test]
    fn connections_of_others_are_not_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (ours, peer) = connection(&listener);
        let (local, remote) = (ours.local_addr().unwrap(), ours.peer_addr().unwrap());
        drop((ours, peer));
        assert!(ReceiveMark::find(local, remote).unwrap().is_none());
        let listening = listener.local_addr().unwrap();
        assert!(ReceiveMark::find(listening, listening).unwrap().is_none());
    }
}
