//! Packets of JSON with descriptors, between processes or threads of ours that do not share descriptors.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
    },
};
use serde::{Serialize, de::DeserializeOwned};

/// The maximum number of descriptors of a message: the file of an exec request, and standard input, output and error.
const DESCRIPTORS: usize = 4;
/// The maximum size of a packet in bytes. Longer values go into a file.
const PACKET: usize = 16 * 1024;

/// The two ends of a connection that preserves packet boundaries.
pub(crate) fn connection() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Sends a packet.
pub(crate) fn send<T: Serialize>(socket: impl AsFd, message: &T, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    loop {
        match sendmsg(&socket, &[IoSlice::new(&text)], &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            other => return Ok(other.map(drop)?),
        }
    }
}

/// Waits for a packet; `None` if the other side is closed.
pub(crate) fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut packet = vec![0; PACKET];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut buffers = [IoSliceMut::new(&mut packet)];
        match recvmsg(&socket, &mut buffers, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            descriptors.extend(fds);
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message is too long"));
    }
    Ok(Some((serde_json::from_slice(&packet[..received.bytes])?, descriptors)))
}

/// Shortens a text so that it fits into a packet.
pub(crate) fn clip(mut text: String) -> String {
    // A character takes up to six bytes in JSON.
    let mut end = text.len().min(PACKET / 8);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_text_fits() {
        let (ours, theirs) = connection().expect("a connection");
        for text in ["\u{1}".repeat(100_000), "ä\"".repeat(100_000)] {
            send(&ours, &clip(text), &[]).expect("sent");
            assert!(receive::<String>(&theirs).expect("received").is_some());
        }
    }

    #[test]
    fn a_packet_that_is_too_long_is_refused() {
        let (ours, theirs) = connection().expect("a connection");
        send(&ours, &"x".repeat(PACKET), &[]).expect("sent");
        assert!(receive::<String>(&theirs).is_err());
    }
}
