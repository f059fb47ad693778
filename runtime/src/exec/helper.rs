//! The role `exec-helper`: the helper runs one command to its end.
//!
//! It has one thread and is in the host's namespaces, in a session of its own. Standard input is the connection to the
//! plugin.

use std::{
    io, iter,
    os::fd::{AsFd, OwnedFd},
    process::ExitCode,
};

use rustix::{
    io::{Errno, fcntl_dupfd_cloexec},
    process::{DumpableBehavior, Signal, set_dumpable_behavior, setsid},
};

use super::{
    begin::begin,
    confine::confine,
    protocol::{HelperOrder, HelperReply, read_request},
    refusal::Refusal,
    request::ExecExit,
    stdio::null,
};
use crate::{
    packets::{clip, receive, send},
    role::ExecArgs,
    state::TaskDir,
    sys,
};

/// The role `exec-helper`. Called before the process has any other thread.
pub(crate) fn main(args: ExecArgs) -> ExitCode {
    let served = settle().and_then(|plugin| serve(&TaskDir::at(args.task), &plugin));
    // An error is not sent: the connection has failed, and the plugin sees the end of this process.
    if served.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Detaches this process from the plugin, except for the returned connection.
fn settle() -> io::Result<OwnedFd> {
    sys::close_descriptors(3, u32::MAX)?;
    // The container must not trace this process or read its memory.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let plugin = fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    rustix::stdio::dup2_stdin(&null()?)?;
    // setsid(2) fails with EPERM for a process that leads a session or process group already.
    if let Err(error) = setsid()
        && error != Errno::PERM
    {
        return Err(error.into());
    }
    rustix::thread::set_name(c"oci-rs:exec")?;
    // The plugin's keyring must not be shared: its processes may read and change its keys.
    sys::join_new_session_keyring()?;
    std::env::set_current_dir("/")?;
    for signal in [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2] {
        sys::ignore_signal(signal)?;
    }
    Ok(plugin)
}

fn serve(task: &TaskDir, plugin: &OwnedFd) -> io::Result<()> {
    let Some((HelperOrder::Run, mut descriptors)) = receive(plugin)? else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    if descriptors.is_empty() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let request = read_request(descriptors.remove(0))?;
    let stdio = descriptors.try_into().ok();
    match begin(task, request, stdio, plugin) {
        Ok((command, terminal)) => {
            let descriptors: Vec<_> = iter::once(command.pidfd()).chain(terminal.iter().map(AsFd::as_fd)).collect();
            // If the plugin is gone, `watch` notices it and ends the command.
            let told = send(plugin, &HelperReply::Running, &descriptors);
            drop(terminal);
            // After the answer, so that the client does not wait. A command that runs must be ended in any case, so a
            // helper that cannot be restricted works on. A command in a sandbox is ended by the runtime, which needs
            // the rights of its caller.
            let confined = command.tree().map_or(Ok(()), |tree| confine(tree.cgroup()));
            let rights_kept = confined.err().map(|error| clip(error.to_string()));
            let ExecExit { exit_code, signal } = if command.watch(plugin)? {
                command.reap()?
            } else {
                // When this process ends, the kernel kills the command once more.
                ExecExit { exit_code: 128 + libc::SIGKILL, signal: libc::SIGKILL }
            };
            told.and(send(plugin, &HelperReply::Exited { exit_code, signal, rights_kept }, &[]))
        }
        Err(Refusal::NotExecuted(exit_code)) => {
            send(plugin, &HelperReply::Running, &[])?;
            send(plugin, &HelperReply::Exited { exit_code, signal: 0, rights_kept: None }, &[])
        }
        Err(Refusal::ContainerGone) => send(plugin, &HelperReply::ContainerGone, &[]),
        Err(Refusal::Failed(reason)) => send(plugin, &HelperReply::Failed(clip(reason)), &[]),
    }
}
