//! What the plugin, the helper and the entrant tell each other: packets of JSON, with descriptors.

use std::{
    fs::File,
    io::{self, IoSlice, IoSliceMut, Read, Seek, Write},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{MemfdFlags, memfd_create},
    io::Errno,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
    },
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{ExecOptions, TerminalSize};

/// The most descriptors that go with a message: a request's file and three for standard input, output and error.
const DESCRIPTORS: usize = 4;
/// The longest packet; a command, which can be longer, goes in a file.
const PACKET: usize = 16 * 1024;

/// What the plugin asks for: in a file, the first descriptor of a message. The command's standard input, output and error
/// follow unless it gets a terminal.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Request {
    pub args: Vec<String>,
    pub terminal: Option<TerminalSize>,
    pub options: ExecOptions,
}

/// What the plugin says to a helper.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Order {
    /// The request is in the descriptors.
    Run,
    /// SIGHUP, and nothing else.
    Hangup,
    /// SIGHUP, and SIGKILL when that did not do.
    End,
    /// SIGKILL at once.
    Kill,
}

/// What the helper answers: one of the first three, and after `Running` in the end `Exited`.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Reply {
    /// The command is about to be executed. With the terminal's master side.
    Running,
    ContainerGone,
    Failed(String),
    Exited {
        exit_code: i32,
        signal: i32,
    },
}

/// What the entrant tells the helper.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Entered {
    /// With the terminal's master side.
    Running {
        pid: i32,
    },
    Failed(String),
}

/// The two ends of a connection that keeps packets apart.
pub(super) fn connection() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Puts a request into a file.
pub(super) fn request_file(request: &Request) -> io::Result<OwnedFd> {
    let mut file = File::from(memfd_create("request", MemfdFlags::CLOEXEC)?);
    file.write_all(&serde_json::to_vec(request)?)?;
    file.rewind()?;
    Ok(file.into())
}

/// Takes a request out of its file.
pub(super) fn read_request(file: OwnedFd) -> io::Result<Request> {
    let mut text = Vec::new();
    File::from(file).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

/// Sends a packet.
pub(super) fn send<T: Serialize>(socket: impl AsFd, message: &T, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
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

/// Waits for a packet; `None` when the other side is gone.
pub(super) fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
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

/// An error's text, short enough for a packet.
pub(super) fn clip(mut text: String) -> String {
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
    fn packets_stay_apart_and_carry_descriptors() {
        let (ours, theirs) = connection().expect("a connection");
        let request = Request { args: vec!["x".repeat(3_000_000)], terminal: None, options: ExecOptions::default() };
        let file = request_file(&request).expect("a file");
        send(&ours, &Order::Run, &[file.as_fd()]).expect("sent");
        send(&ours, &Order::Kill, &[]).expect("sent");
        let (order, mut descriptors) = receive(&theirs).expect("received").expect("a message");
        assert_eq!((Order::Run, 1), (order, descriptors.len()));
        assert_eq!(read_request(descriptors.remove(0)).expect("a request"), request);
        let (order, descriptors) = receive::<Order>(&theirs).expect("received").expect("a message");
        assert_eq!((Order::Kill, 0), (order, descriptors.len()));
        drop(ours);
        assert!(receive::<Order>(&theirs).expect("no error").is_none());
    }

    #[test]
    fn the_longest_text_fits() {
        let (ours, theirs) = connection().expect("a connection");
        for text in ["\u{1}".repeat(100_000), "ä\"".repeat(100_000)] {
            send(&ours, &Reply::Failed(clip(text)), &[]).expect("sent");
            assert!(receive::<Reply>(&theirs).expect("received").is_some());
        }
    }
}
