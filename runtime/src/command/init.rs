//! Process 1 of a container with an init: it reaps orphans, forwards signals, and ends with the command's status.
//!
//! It is our own binary (a sealed memory file), not dumpable, and has no open descriptor. Its name and command line are
//! those of docker's init, so programs that look for an init by its name find it, and no path of the node shows.

use std::{ffi::CStr, io};

use rustix::{
    io::Errno,
    process::{Pid, Signal, WaitOptions, WaitStatus, getpgrp, kill_process, setpgid, wait},
    termios::tcsetpgrp,
};

use crate::{
    error::StartError,
    process::signal_from,
    sys::{self, Fork},
};

/// The name of docker's init, which is in `/sbin`.
const NAME: &CStr = c"docker-init";

/// Forks. The parent becomes the init. The child calls `execute`; if that returns with an error, the child returns it
/// here.
pub(super) fn run(command_line: &[String], execute: impl FnOnce() -> StartError) -> StartError {
    // Signals are blocked before the fork, so that none is lost, not even the child's SIGCHLD.
    if let Err(error) = sys::block_signals() {
        return StartError::internal(format!("blocking signals: {error}"));
    }
    // Only the look depends on this, so an error does not end the start. execve(2) gives the command its own name.
    let _named = take_name(command_line).is_ok();
    match sys::fork() {
        Ok(Fork::Child) => {
            let _in_foreground = own_process_group();
            match sys::default_signals() {
                Ok(()) => execute(),
                Err(error) => StartError::internal(format!("resetting signals: {error}")),
            }
        }
        Ok(Fork::Parent(command)) => match sys::close_descriptors(0, u32::MAX) {
            Ok(()) => sys::exit_now(supervise(command)),
            Err(error) => StartError::internal(format!("closing descriptors: {error}")),
        },
        Err(error) => StartError::internal(format!("forking the command: {error}")),
    }
}

/// Takes the name and the command line of docker's init.
fn take_name(command_line: &[String]) -> io::Result<()> {
    rustix::thread::set_name(NAME)?;
    let path = [c"/sbin/", NAME].map(CStr::to_bytes).concat();
    let arguments = [&path[..], b"--"].into_iter().chain(command_line.iter().map(String::as_bytes));
    sys::replace_command_line(&arguments.collect::<Vec<_>>().join(&0))
}

/// Puts the command into the foreground of the terminal, if there is one, so that the terminal's signals reach the
/// command and not the init.
fn own_process_group() -> bool {
    // If that fails, the command stays in the init's process group, where it gets the same signals. Without a terminal
    // there is no foreground.
    let foreground = setpgid(None, None).is_ok() && sys::ignore_signal(Signal::TTOU).is_ok();
    foreground && tcsetpgrp(rustix::stdio::stdin(), getpgrp()).is_ok()
}

/// Forwards signals until the command has ended; its status.
fn supervise(command: Pid) -> i32 {
    loop {
        match sys::wait_for_any_signal() {
            Ok(libc::SIGCHLD) => {
                if let Some(status) = reap(command) {
                    return status;
                }
            }
            Ok(signal) => {
                // The command may have ended a moment ago. Its SIGCHLD follows.
                let _sent = signal_from(signal).is_ok_and(|signal| kill_process(command, signal).is_ok());
            }
            Err(_) => return 255,
        }
    }
}

/// Reaps all ended children; the command's status if it is among them.
fn reap(command: Pid) -> Option<i32> {
    let mut status = None;
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, ended))) if pid == command => status = Some(code(ended)),
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) | Err(_) => return status,
        }
    }
}

fn code(status: WaitStatus) -> i32 {
    status.exit_status().unwrap_or_else(|| 128 + status.terminating_signal().unwrap_or(0))
}
