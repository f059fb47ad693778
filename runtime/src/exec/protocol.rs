//! What the plugin, the helper and the entrant tell each other, in packets.

use std::{
    fs::File,
    io::{self, Read, Seek, Write},
    os::fd::OwnedFd,
};

use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};

use super::{ExecOptions, TerminalSize};

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

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::packets::{connection, receive, send};

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
}
