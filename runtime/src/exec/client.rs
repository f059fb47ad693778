//! The plugin's side of a command: starting it, waiting for it, ending it.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    thread,
};

use serde::{Deserialize, Serialize};

use super::{
    entrant::null,
    protocol::{Order, Reply, Request, request_file},
};
use crate::{
    error::{Context, ExecError},
    launcher::Launcher,
    packets::{connection, receive, send},
    plan::ContainerId,
    process::ProcessRef,
    role::{ExecArgs, Role},
    state::TaskDir,
};

/// How many characters a terminal shows.
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
    /// What is to be different from the container's own command.
    pub options: ExecOptions,
}

/// What is to be different from the container's own command.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecOptions {
    /// Descendants that lose their parent stay below the command until it ends, so that [`ExecProcess::kill`] finds all
    /// of them, those that made a session of their own too. The command then is told of the ends of processes that it
    /// did not make.
    #[serde(default)]
    pub whole_tree: bool,
    /// Runs as another user.
    #[serde(default)]
    pub user: Option<OtherUser>,
    /// Absolute path of another working directory, which the command's user must be able to enter.
    #[serde(default)]
    pub cwd: Option<String>,
    /// Runs a program of another image, in the container's namespaces, with the container's root at `/task`.
    #[serde(default)]
    pub tools: Option<ToolsImage>,
}

/// An image with programs for a container that has none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolsImage {
    /// Its unpacked layers, top-most first. They must stay until the command has ended.
    pub layers: Vec<PathBuf>,
    /// Its `PATH`.
    pub path: Option<String>,
}

/// Another user than the container's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherUser {
    /// As in a plan: `user`, `user:group`, numeric or not, resolved in the running container.
    pub name: String,
    /// Also where the container's command could not become that user by itself.
    pub beyond_the_container: bool,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExecExit {
    /// Its exit code; 128 + n when signal n ended it; 127 when there is no such command, 126 when it cannot be
    /// executed.
    pub exit_code: i32,
    /// The signal that ended it, or 0.
    pub signal: i32,
}

/// A command that runs in a container. Dropping it ends the command.
#[derive(Debug)]
pub struct ExecProcess {
    /// The process that waits for the command.
    pub helper: ProcessRef,
    /// The master side of the command's terminal, if it has one.
    pub terminal: Option<OwnedFd>,
    /// `None` once it has been closed.
    control: Option<OwnedFd>,
}

/// Starts a command; returns when it is about to be executed. Whether it could be is told by its exit code and its
/// standard error, as a shell does it.
pub(crate) fn start(
    launcher: &Launcher,
    task: &TaskDir,
    id: &ContainerId,
    request: ExecRequest,
) -> Result<ExecProcess, ExecError> {
    if request.args.first().is_none_or(String::is_empty) {
        return Err(ExecError::Invalid("exec: the command is empty".to_owned()));
    }
    if request.args.iter().any(|arg| arg.contains('\0')) {
        return Err(ExecError::Invalid("exec: the command contains a NUL byte".to_owned()));
    }
    let ExecRequest { args, terminal, stdin, stdout, stderr, options } = request;
    let (control, theirs) = connection().context(|| "making a connection".to_owned())?;
    let sent = request_file(&Request { args, terminal, options }).and_then(|file| {
        let all = [file.as_fd(), stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
        send(&control, &Order::Run, if terminal.is_some() { &all[..1] } else { &all })
    });
    sent.context(|| "passing on the command".to_owned())?;
    let nothing = null().context(|| "opening /dev/null".to_owned())?;
    let stdio = [theirs.as_fd(), nothing.as_fd(), nothing.as_fd()];
    let role = Role::Exec(ExecArgs { task: task.path().to_owned() });
    let helper = launcher.spawn(&role, stdio).context(|| "executing the exec helper".to_owned())?;
    drop(theirs);
    let mut process = ExecProcess { helper, terminal: None, control: Some(control) };
    match process.reply().context(|| "listening to the exec helper".to_owned())? {
        Some((Reply::Running, mut descriptors)) => {
            process.terminal = descriptors.pop();
            if terminal.is_some() && process.terminal.is_none() {
                return Err(ExecError::Invalid("exec: the helper sent no terminal".to_owned()));
            }
            Ok(process)
        }
        Some((Reply::ContainerGone, _)) => Err(ExecError::NotRunning(id.clone())),
        Some((Reply::Failed(reason), _)) => Err(ExecError::Invalid(format!("exec: {reason}"))),
        Some((Reply::Exited { .. }, _)) | None => Err(ExecError::Invalid("exec: the helper died".to_owned())),
    }
}

impl ExecProcess {
    /// Readable when the command has ended or the helper has died: then [`Self::wait`] does not block.
    pub fn exit_fd(&self) -> BorrowedFd<'_> {
        self.control.as_ref().map_or_else(|| self.helper.pidfd.as_fd(), AsFd::as_fd)
    }

    /// Waits for the command's end. A command whose helper was killed was killed with it.
    pub fn wait(self) -> ExecExit {
        const KILLED: ExecExit = ExecExit { exit_code: 128 + libc::SIGKILL, signal: libc::SIGKILL };
        let exit = match self.reply() {
            Ok(Some((Reply::Exited { exit_code, signal }, _))) => ExecExit { exit_code, signal },
            _ => KILLED,
        };
        // It has said its last word, or is dead; dropping us takes it out of the process table.
        drop(self.helper.wait_for(None));
        exit
    }

    /// Kills the command and everything of its session at once.
    pub fn kill(&self) {
        self.order(&Order::Kill);
    }

    /// Ends the command and everything of its session: SIGHUP, a moment later SIGKILL.
    pub fn end(&self) {
        self.order(&Order::End);
    }

    /// Sends SIGHUP to the command's session, as a terminal does that goes away.
    pub fn hangup(&self) {
        self.order(&Order::Hangup);
    }

    fn order(&self, order: &Order) {
        if let Some(Err(error)) = self.control.as_ref().map(|control| send(control, order, &[])) {
            // A helper that is gone has ended its command.
            tracing::debug!(%error, "exec helper not told");
        }
    }

    fn reply(&self) -> std::io::Result<Option<(Reply, Vec<OwnedFd>)>> {
        self.control.as_ref().map_or(Ok(None), receive)
    }
}

impl Drop for ExecProcess {
    /// The helper ends its command when nobody listens to it. It is our child and must be waited for, which can take as
    /// long as the command needs to die.
    fn drop(&mut self) {
        self.control = None;
        if self.helper.ended() {
            // Failing means that it has been waited for.
            drop(self.helper.reap());
            return;
        }
        let Ok(pidfd) = self.helper.pidfd.try_clone() else { return };
        let helper = ProcessRef { pidfd, ..self.helper };
        let reap = move || helper.wait_for(None).and_then(|_| helper.reap());
        // Without a thread, a zombie stays until we end.
        if let Err(error) = thread::Builder::new().name("exec reaper".to_owned()).spawn(reap) {
            tracing::debug!(%error, "exec helper not reaped");
        }
    }
}
