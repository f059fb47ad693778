//! A command to run in a container, and how it ended.

use std::{os::fd::OwnedFd, path::PathBuf};

use serde::{Deserialize, Serialize};

/// The size of a terminal in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// Lines.
    pub rows: u16,
    /// Characters in a line.
    pub cols: u16,
}

/// A command to run in a container.
#[derive(Debug)]
pub struct ExecRequest {
    /// Program and arguments, never empty. The program is looked up in the container's `PATH`.
    pub args: Vec<String>,
    /// Give the command a terminal of this size instead of the three descriptors.
    pub terminal: Option<TerminalSize>,
    /// Its standard input.
    pub stdin: OwnedFd,
    /// Its standard output.
    pub stdout: OwnedFd,
    /// Its standard error.
    pub stderr: OwnedFd,
    /// Differences from the container's own command.
    pub options: ExecOptions,
}

/// Differences from the container's own command.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecOptions {
    /// The command becomes the parent of its orphaned descendants (PR_SET_CHILD_SUBREAPER), so that
    /// [`ExecProcess::kill`](super::ExecProcess::kill) finds all of them, even those with a session of their own. The
    /// command then gets the ends of processes that it did not create.
    #[serde(default)]
    pub whole_tree: bool,
    /// Run as another user.
    #[serde(default)]
    pub user: Option<OtherUser>,
    /// Absolute path of another working directory. The command's user must be able to enter it.
    #[serde(default)]
    pub cwd: Option<String>,
    /// Run a program of a debug image in the container's namespaces, with the container's root at `/task`.
    #[serde(default, rename = "tools")]
    pub debug_image: Option<DebugImage>,
}

/// An image with programs for a container that has none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DebugImage {
    /// Its unpacked layers, top-most first. They must exist until the command has ended.
    pub layers: Vec<PathBuf>,
    /// Its `PATH`.
    pub path: Option<String>,
}

/// Another user than the container's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherUser {
    /// As in a plan: `user`, `user:group`, numeric or not, resolved in the running container.
    pub name: String,
    /// Any user, even one that the container's command could not become by itself.
    #[serde(rename = "beyond_the_container")]
    pub allow_any: bool,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExecExit {
    /// Its exit code; 128 + n when signal n ended it; 127 if there is no such command, 126 if it cannot be executed.
    pub exit_code: i32,
    /// The signal that ended it, or 0.
    pub signal: i32,
}
