//! The packets that the plugin, the helper and the entering process exchange.

use std::{
    fs::File,
    io::{self, Read, Seek, Write},
    os::fd::OwnedFd,
};

use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};

use super::request::{ExecOptions, TerminalSize};

/// The plugin's request, sent as a file: the first descriptor of the message [`HelperOrder::Run`]. The command's
/// standard input, output and error follow, unless it gets a terminal.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CommandRequest {
    pub args: Vec<String>,
    pub terminal: Option<TerminalSize>,
    pub options: ExecOptions,
}

/// The plugin's messages to the helper.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum HelperOrder {
    /// Run the command of the request.
    Run,
    /// Send SIGHUP, and do nothing else.
    Hangup,
    /// Send SIGHUP, and SIGKILL if the command has not ended after a moment.
    End,
    /// Send SIGKILL at once.
    Kill,
}

/// The helper's messages to the plugin: one of the first three, and `Exited` some time after `Running`.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum HelperReply {
    /// The command is about to be executed. A pidfd of it goes with this message, and then the terminal's master side.
    /// Without descriptors there is no command: it could not be executed, and its end follows.
    Running,
    /// The container has ended.
    ContainerGone,
    /// The command could not be run.
    Failed(String),
    /// The command has ended. If the helper could not give up its rights, the reason is told.
    Exited { exit_code: i32, signal: i32, rights_kept: Option<String> },
}

/// The entering process's message to the helper.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum EnterReport {
    /// The process has entered and makes the command next. It ends with status 0 when the command begins, otherwise
    /// with the number of the error. The terminal's master side goes with this message.
    Entered,
    Failed(String),
}

/// Puts a request into a file.
pub(super) fn request_file(request: &CommandRequest) -> io::Result<OwnedFd> {
    let mut file = File::from(memfd_create("request", MemfdFlags::CLOEXEC)?);
    file.write_all(&serde_json::to_vec(request)?)?;
    file.rewind()?;
    Ok(file.into())
}

/// Takes a request out of its file.
pub(super) fn read_request(file: OwnedFd) -> io::Result<CommandRequest> {
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
        let request =
            CommandRequest { args: vec!["x".repeat(3_000_000)], terminal: None, options: ExecOptions::default() };
        let file = request_file(&request).expect("a file");
        send(&ours, &HelperOrder::Run, &[file.as_fd()]).expect("sent");
        send(&ours, &HelperOrder::Kill, &[]).expect("sent");
        let (order, mut descriptors) = receive(&theirs).expect("received").expect("a message");
        assert_eq!((HelperOrder::Run, 1), (order, descriptors.len()));
        assert_eq!(read_request(descriptors.remove(0)).expect("a request"), request);
        let (order, descriptors) = receive::<HelperOrder>(&theirs).expect("received").expect("a message");
        assert_eq!((HelperOrder::Kill, 0), (order, descriptors.len()));
        drop(ours);
        assert!(receive::<HelperOrder>(&theirs).expect("no error").is_none());
    }
}
