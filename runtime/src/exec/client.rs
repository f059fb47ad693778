//! The plugin's side of a command: starting it, waiting for its end, ending it.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use rustix::{
    io::Errno,
    process::{Signal, pidfd_send_signal},
};

use super::{
    protocol::{CommandRequest, HelperOrder, HelperReply, request_file},
    reaper::{reap_later, reap_others},
    request::{ExecExit, ExecRequest},
    stdio::null,
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

/// A helper may take this long to end after its last message.
const LAST_STEPS: Duration = Duration::from_secs(2);

/// A command that runs in a container. Dropping it ends the command.
#[derive(Debug)]
pub struct ExecProcess {
    /// The helper, which waits for the command; `None` only while this is dropped.
    helper: Option<ProcessRef>,
    /// The command, once it has begun.
    command: Option<OwnedFd>,
    /// The master side of the command's terminal, if it has one.
    pub terminal: Option<OwnedFd>,
    /// The connection to the helper. When it is closed, the helper ends its command.
    control: OwnedFd,
    container: ContainerId,
    wants_terminal: bool,
}

/// Starts the helper of a command. [`ExecProcess::begun`] tells whether there is a command.
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
    let sent = request_file(&CommandRequest { args, terminal, options }).and_then(|file| {
        let all = [file.as_fd(), stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
        send(&control, &HelperOrder::Run, if terminal.is_some() { &all[..1] } else { &all })
    });
    sent.context(|| "passing on the command".to_owned())?;
    let nothing = null().context(|| "opening /dev/null".to_owned())?;
    let stdio = [theirs.as_fd(), nothing.as_fd(), nothing.as_fd()];
    let role = Role::Exec(ExecArgs { task: task.path().to_owned() });
    let helper = launcher.spawn(&role, stdio).context(|| "executing the exec helper".to_owned())?;
    drop(theirs);
    let wants_terminal = terminal.is_some();
    Ok(ExecProcess {
        helper: Some(helper),
        command: None,
        terminal: None,
        control,
        container: id.clone(),
        wants_terminal,
    })
}

impl ExecProcess {
    /// Waits until the command is about to be executed, or could not be made. To be called once. Does not block if
    /// [`Self::exit_fd`] is readable. As with a shell, the exit code and the standard error of the command tell whether
    /// it could be executed.
    pub fn begun(mut self) -> Result<Self, ExecError> {
        match self.reply().context(|| "listening to the exec helper".to_owned())? {
            Some((HelperReply::Running, descriptors)) => {
                let mut descriptors = descriptors.into_iter();
                self.command = descriptors.next();
                self.terminal = descriptors.next();
                if self.wants_terminal && self.terminal.is_none() {
                    return Err(ExecError::Invalid("exec: the helper sent no terminal".to_owned()));
                }
                Ok(self)
            }
            Some((HelperReply::ContainerGone, _)) => Err(ExecError::NotRunning(self.container.clone())),
            Some((HelperReply::Failed(reason), _)) => Err(ExecError::Invalid(format!("exec: {reason}"))),
            Some((HelperReply::Exited { .. }, _)) | None => Err(ExecError::Invalid("exec: the helper died".to_owned())),
        }
    }

    /// Readable when the helper has something to tell: first that the command has begun, then that it has ended. Also
    /// readable when the helper has died. Then neither [`Self::begun`] nor [`Self::wait`] blocks.
    pub fn exit_fd(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    /// Waits for the command's end. If the helper was killed, the command is killed too.
    pub fn wait(self) -> ExecExit {
        const KILLED: ExecExit = ExecExit { exit_code: 128 + libc::SIGKILL, signal: libc::SIGKILL };
        let exit = match self.reply() {
            Ok(Some((HelperReply::Exited { exit_code, signal, rights_kept }, _))) => {
                if let Some(reason) = rights_kept {
                    tracing::warn!(container = %self.container, reason, "an exec helper could not give up its rights");
                }
                ExecExit { exit_code, signal }
            }
            _ => KILLED,
        };
        // The helper ends after this message, or is dead already. Dropping `self` reaps it.
        drop(self.helper.as_ref().map(|helper| helper.wait_for(Some(LAST_STEPS))));
        exit
    }

    /// The helper.
    pub fn helper(&self) -> Option<&ProcessRef> {
        self.helper.as_ref()
    }

    /// Kills the command and all its processes at once.
    pub fn kill(&self) {
        self.order(&HelperOrder::Kill);
    }

    /// Ends the command and all its processes: SIGHUP, a moment later SIGKILL.
    pub fn end(&self) {
        self.order(&HelperOrder::End);
    }

    /// Sends SIGHUP to the command's processes, as the kernel does when a terminal is hung up.
    pub fn hangup(&self) {
        self.order(&HelperOrder::Hangup);
    }

    fn order(&self, order: &HelperOrder) {
        if let Err(error) = send(&self.control, order, &[]) {
            // If the helper is gone, its command has ended.
            tracing::debug!(%error, "exec helper not told");
        }
    }

    fn reply(&self) -> std::io::Result<Option<(HelperReply, Vec<OwnedFd>)>> {
        receive(&self.control)
    }
}

impl Drop for ExecProcess {
    /// The connection is closed after this, which makes the helper end its command. The helper is our child and must be
    /// reaped, which can take as long as the command needs to die.
    ///
    /// A helper that was killed has not ended its command. The kernel does it on most nodes, but a security module can
    /// make it forget that when the command is executed (prctl(2), PR_SET_PDEATHSIG).
    fn drop(&mut self) {
        let Some(helper) = self.helper.take() else { return };
        if helper.ended() {
            match self.command.as_ref().map(|command| pidfd_send_signal(command, Signal::KILL)) {
                // It has ended.
                None | Some(Ok(()) | Err(Errno::SRCH)) => {}
                Some(Err(error)) => tracing::warn!(%error, "the command of a killed exec helper was not killed"),
            }
            // An error means that it was reaped already.
            drop(helper.reap());
            reap_others();
        } else {
            reap_later(helper);
        }
    }
}
