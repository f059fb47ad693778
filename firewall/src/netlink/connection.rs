//! A socket to the kernel's netfilter.
//!
//! The kernel works on a request while it is sent. So all answers can be read as soon as the request is sent, and no
//! answer belongs to an earlier request.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_NETFILTER};

use super::{
    attributes::Attributes,
    message::{ACK, DUMP, Message, Reply, interrupted, replies},
};

/// The subsystem of nf_tables.
const NFTABLES: u16 = 10;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
/// The largest datagram that the kernel sends.
const DATAGRAM: usize = 64 * 1024;

/// A request that the kernel refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The number of the request in its transaction. Without a number, the whole transaction was refused.
    pub(crate) index: Option<usize>,
    /// The error number.
    pub(crate) error: i32,
}

/// A socket in the network namespace of the thread that opened it.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: Socket,
}

impl Connection {
    /// Opens a socket. It receives the notifications of these groups.
    pub(crate) fn open(groups: &[u32]) -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        socket.bind(&SocketAddr::new(0, 0))?;
        // An error then does not contain the request.
        socket.set_cap_ack(true)?;
        for group in groups {
            socket.add_membership(*group)?;
        }
        Ok(Self { socket })
    }

    /// Changes nf_tables in one transaction: all of these requests succeed, or the list says which did not.
    pub(crate) fn transact(&self, requests: &[Message]) -> io::Result<Vec<Refusal>> {
        let Some(last) = requests.len().checked_sub(1) else { return Ok(Vec::new()) };
        let mut datagram = Vec::new();
        let bound =
            |kind| Message { kind, flags: 0, family: 0, version: 0, resource: NFTABLES, attributes: Attributes::new() };
        bound(BATCH_BEGIN).encode(0, &mut datagram);
        for (index, request) in requests.iter().enumerate() {
            let sequence = index as u32 + 1;
            if index == last {
                Message { flags: request.flags | ACK, ..request.clone() }.encode(sequence, &mut datagram);
            } else {
                request.encode(sequence, &mut datagram);
            }
        }
        bound(BATCH_END).encode(last as u32 + 2, &mut datagram);
        self.send(&datagram)?;
        let (mut refused, mut answered) = (Vec::new(), false);
        self.drain(|reply| {
            if let Reply::Result { sequence, error } = reply {
                answered = true;
                if error != 0 {
                    let index = (sequence as usize).checked_sub(1).filter(|index| *index <= last);
                    refused.push(Refusal { index, error });
                }
            }
        })?;
        if answered { Ok(refused) } else { Err(io::Error::other("the kernel did not answer")) }
    }

    /// Sends requests that are not a transaction. Returns the numbers of those that were refused.
    pub(crate) fn request(
        &self,
        requests: &[Message],
        mut object: impl FnMut(usize, &[u8]),
    ) -> io::Result<Vec<Refusal>> {
        let mut datagram = Vec::new();
        for (index, request) in requests.iter().enumerate() {
            request.encode(index as u32, &mut datagram);
        }
        self.send(&datagram)?;
        let mut refused = Vec::new();
        self.drain(|reply| match reply {
            Reply::Result { sequence, error } if error != 0 => {
                refused.push(Refusal { index: Some(sequence as usize), error });
            }
            Reply::Object { sequence, attributes, .. } => object(sequence as usize, attributes),
            Reply::Result { .. } | Reply::Done => {}
        })?;
        Ok(refused)
    }

    /// Requests all objects of a kind in nf_tables. A table or chain that does not exist has none.
    pub(crate) fn list(&self, request: &Message) -> io::Result<Vec<Vec<u8>>> {
        loop {
            let mut objects = Vec::new();
            // Each change in the namespace can interrupt the dump, so a next attempt is likely to succeed.
            if self.dump(request, |object| objects.push(object.to_vec()))? {
                return Ok(objects);
            }
        }
    }

    /// Requests all objects of a kind. Returns `false` if some may be missing.
    pub(crate) fn dump(&self, request: &Message, mut object: impl FnMut(&[u8])) -> io::Result<bool> {
        let mut datagram = Vec::new();
        Message { flags: request.flags | DUMP, ..request.clone() }.encode(0, &mut datagram);
        self.send(&datagram)?;
        let (mut done, mut failed, mut whole) = (false, 0, true);
        while !done {
            datagram.clear();
            self.receive(&mut datagram, 0)?;
            whole &= !interrupted(&datagram);
            for reply in replies(&datagram) {
                match reply {
                    Reply::Object { attributes, .. } => object(attributes),
                    Reply::Result { error, .. } => (done, failed) = (true, error),
                    Reply::Done => done = true,
                }
            }
        }
        match failed {
            0 | libc::ENOENT => Ok(whole),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Reads everything that was received, without waiting.
    pub(crate) fn drain(&self, mut each: impl FnMut(Reply<'_>)) -> io::Result<()> {
        let mut datagram = Vec::new();
        loop {
            datagram.clear();
            match self.receive(&mut datagram, libc::MSG_DONTWAIT) {
                Ok(()) => replies(&datagram).for_each(&mut each),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    fn send(&self, datagram: &[u8]) -> io::Result<()> {
        retry(|| self.socket.send(datagram, 0)).map(|_| ())
    }

    fn receive(&self, datagram: &mut Vec<u8>, flags: i32) -> io::Result<()> {
        datagram.reserve(DATAGRAM);
        retry(|| self.socket.recv(datagram, flags)).map(|_| ())
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Repeats a call that a signal interrupted.
fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
