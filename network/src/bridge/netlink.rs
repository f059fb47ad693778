//! A connection to the kernel for links, addresses and routes (rtnetlink(7)). The kernel does each request before the
//! call that sends it returns, so no call here waits.

use std::{io, os::fd::OwnedFd};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkBuffer, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use rustix::{
    io::retry_on_intr,
    net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with},
};

/// The types of messages with an error or an acknowledgement, and of the last message of a list (linux/netlink.h).
const ERROR: u16 = 2;
const DONE: u16 = 3;

/// More than the kernel puts into one message of a list, or into the description of one link.
const BUFFER: usize = 64 * 1024;

/// A connection to one network namespace.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: OwnedFd,
    sequence: u32,
}

/// A request, with the flags of `NLM_F_CREATE` and its like.
pub(crate) type Request = (RouteNetlinkMessage, u16);

/// One message of an answer.
#[derive(Debug, PartialEq, Eq)]
struct Message<'a> {
    kind: u16,
    sequence: u32,
    payload: &'a [u8],
}

impl Connection {
    /// Connects to the network namespace of this thread. The connection is of use in every thread.
    pub fn open() -> io::Result<Self> {
        // Protocol 0 is NETLINK_ROUTE.
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Makes the kernel do requests, in their order and with one system call. It does the later ones also if an earlier
    /// one fails. The error is that of the first request that failed.
    pub fn execute(&mut self, requests: Vec<Request>) -> io::Result<()> {
        let mut bytes = Vec::new();
        let count = requests.len();
        for (number, (message, flags)) in requests.into_iter().enumerate() {
            // The kernel answers to a failed request in any case.
            let acknowledged = if number + 1 == count { NLM_F_ACK } else { 0 };
            self.append(&mut bytes, message, flags | acknowledged);
        }
        self.send(&bytes)?;
        let mut result = Ok(());
        let last = self.sequence;
        self.receive(|message| {
            if message.kind == ERROR {
                result = std::mem::replace(&mut result, Ok(())).and(error_of(message.payload));
            }
            message.kind == ERROR && message.sequence == last
        })?;
        result
    }

    /// The payload of the only answer to a request.
    pub fn get(&mut self, message: RouteNetlinkMessage) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.append(&mut bytes, message, 0);
        self.send(&bytes)?;
        let mut answer = Ok(Vec::new());
        self.receive(|message| {
            answer = match message.kind {
                ERROR => error_of(message.payload).map(|()| Vec::new()),
                _ => Ok(message.payload.to_vec()),
            };
            true
        })?;
        answer
    }

    /// Asks for a list. Returns the first value that `find` makes of an element's payload. The connection has unread
    /// answers then, so it is used up.
    pub fn find<T>(mut self, message: RouteNetlinkMessage, find: impl Fn(&[u8]) -> Option<T>) -> io::Result<Option<T>> {
        let mut bytes = Vec::new();
        self.append(&mut bytes, message, NLM_F_DUMP);
        self.send(&bytes)?;
        let mut found = Ok(None);
        self.receive(|message| {
            match message.kind {
                ERROR => found = error_of(message.payload).map(|()| None),
                DONE => {}
                _ => found = Ok(find(message.payload)),
            }
            !matches!(found, Ok(None)) || [ERROR, DONE].contains(&message.kind)
        })?;
        found
    }

    /// Asks for a list. Returns the values that `parse` makes of the payloads of its elements.
    pub fn list<T>(mut self, message: RouteNetlinkMessage, parse: impl Fn(&[u8]) -> Option<T>) -> io::Result<Vec<T>> {
        let mut bytes = Vec::new();
        self.append(&mut bytes, message, NLM_F_DUMP);
        self.send(&bytes)?;
        let (mut found, mut result) = (Vec::new(), Ok(()));
        self.receive(|message| {
            match message.kind {
                ERROR => result = error_of(message.payload),
                DONE => {}
                _ => found.extend(parse(message.payload)),
            }
            [ERROR, DONE].contains(&message.kind)
        })?;
        result.map(|()| found)
    }

    fn append(&mut self, bytes: &mut Vec<u8>, message: RouteNetlinkMessage, flags: u16) {
        self.sequence += 1;
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        message.finalize();
        let begin = bytes.len();
        bytes.resize((begin + message.buffer_len()).next_multiple_of(4), 0);
        message.serialize(&mut bytes[begin..]);
    }

    /// Sends to the kernel: the peer of a netlink socket without an address.
    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        retry_on_intr(|| send(&self.socket, bytes, SendFlags::empty()))?;
        Ok(())
    }

    /// Receives messages until `last` says that a message is the last one.
    fn receive(&self, mut last: impl FnMut(&Message) -> bool) -> io::Result<()> {
        let mut buffer = vec![0; BUFFER];
        loop {
            let flags = RecvFlags::TRUNC | RecvFlags::DONTWAIT;
            let (count, length) = retry_on_intr(|| recv(&self.socket, &mut *buffer, flags))?;
            if length > count {
                return Err(io::Error::other("an answer of the kernel is longer than expected"));
            }
            if messages(&buffer[..count]).any(|message| last(&message)) {
                return Ok(());
            }
        }
    }
}

/// The messages of one datagram.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let buffer = NetlinkBuffer::new_checked(bytes).ok()?;
        let (kind, sequence, length) = (buffer.message_type(), buffer.sequence_number(), buffer.length() as usize);
        let payload = bytes.get(NETLINK_HEADER..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Message { kind, sequence, payload })
    })
}

/// The length of a message's header.
const NETLINK_HEADER: usize = 16;

/// The error in a message of the kind [`ERROR`]. Zero is an acknowledgement.
fn error_of(payload: &[u8]) -> io::Result<()> {
    let code = payload.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
    if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code.saturating_neg())) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rustix::io::Errno;

    use super::{Message, error_of, messages};

    #[test]
    fn a_datagram_has_several_messages() {
        let message = |kind: u16, payload: &[u8]| {
            let mut bytes = (16 + payload.len() as u32).to_ne_bytes().to_vec();
            bytes.extend([kind.to_ne_bytes(), [0, 0]].concat());
            bytes.extend([7u32.to_ne_bytes(), 9u32.to_ne_bytes()].concat());
            bytes.extend(payload);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes
        };
        let datagram = [message(16, &[1, 2, 3]), message(3, &[])].concat();
        let parsed: Vec<Message> = messages(&datagram).collect();
        let expected =
            [Message { kind: 16, sequence: 7, payload: &[1, 2, 3] }, Message { kind: 3, sequence: 7, payload: &[] }];
        assert_eq!(parsed, expected);
        assert_eq!(messages(&datagram[..18]).count(), 0, "a message that was cut off");
    }

    #[test]
    fn an_error_has_the_kernels_number() {
        assert!(error_of(&0i32.to_ne_bytes()).is_ok());
        let error = error_of(&(-17i32).to_ne_bytes()).expect_err("an error");
        assert_eq!(Errno::from_io_error(&error), Some(Errno::EXIST));
    }

    proptest! {
        #[test]
        fn no_datagram_makes_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            for message in messages(&bytes) {
                error_of(message.payload).ok();
            }
        }
    }
}
