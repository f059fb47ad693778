//! Process 1 of a container that asked for an init: reaps orphans, forwards signals, ends with the command's status.
//!
//! It is our own binary (a sealed memory file), not dumpable, and holds no descriptor.

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

/// Forks; the child calls `execute`, which returns only with an error, and that is returned here, in the child.
/// This process becomes the init.
pub(super) fn run(execute: impl FnOnce() -> StartError) -> StartError {
    // Blocked before there is a child, so that no signal is lost, its end least of all.
    if let Err(error) = sys::block_signals() {
        return StartError::internal(format!("blocking signals: {error}"));
    }
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

/// The command in the foreground of the terminal, if there is one, so that the terminal's signals reach it and not us.
fn own_process_group() -> bool {
    // Failing leaves it in our group, where it gets the same signals; without a terminal there is no foreground.
    let foreground = setpgid(None, None).is_ok() && sys::ignore_signal(Signal::TTOU).is_ok();
    foreground && tcsetpgrp(rustix::stdio::stdin(), getpgrp()).is_ok()
}

/// Serves until the command has ended; its status.
fn supervise(command: Pid) -> i32 {
    loop {
        match sys::wait_for_any_signal() {
            Ok(libc::SIGCHLD) => {
                if let Some(status) = reap(command) {
                    return status;
                }
            }
            Ok(signal) => {
                // It may have ended a moment ago, which its SIGCHLD is about to tell.
                let _sent = signal_from(signal).is_ok_and(|signal| kill_process(command, signal).is_ok());
            }
            Err(_) => return 255,
        }
    }
}

/// Reaps what has ended; the command's status if it is among it.
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
