//! The terminal of a task after its monitor was killed.
//!
//! The monitor copies the terminal's output to the log. Without it the terminal would be hung up, which ends the
//! task. A plugin that sees the monitor run therefore opens the terminal and the log too, and copies the output after
//! the monitor was killed.

use std::{
    fs::OpenOptions,
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
    path::Path,
    sync::Arc,
};

use runtime::{ContainerLogs, Mark, Running, Runtime, TerminalHold, plan::ContainerId};
use rustix::{
    fs::{FileType, OFlags, fstat},
    io::{Errno, read, write},
};
use tokio::io::Interest;

use crate::{
    events::{Content, TaskEvents},
    sys,
};

/// The outcome of the search for a terminal.
enum TerminalSearch {
    NoTerminal,
    /// The monitor was dead already, and no other process held the terminal.
    HungUp,
    Held {
        log: OwnedFd,
        hold: TerminalHold,
    },
}

/// Holds the terminal of a container until the container has ended. Does nothing for a container without a terminal.
pub async fn keep(
    runtime: Runtime,
    container: ContainerId,
    running: Arc<impl AsRef<Running> + Send + Sync + 'static>,
    events: TaskEvents,
) {
    let (containers, id, worker) = (runtime.clone(), container.clone(), running.clone());
    let found = tokio::task::spawn_blocking(move || -> io::Result<TerminalSearch> {
        let output = containers.output(&id).map_err(io::Error::other)?;
        let Some(ContainerLogs { output, terminal: true, .. }) = output else { return Ok(TerminalSearch::NoTerminal) };
        let Some(hold) = (*worker).as_ref().hold_terminal()? else { return Ok(TerminalSearch::HungUp) };
        Ok(TerminalSearch::Held { log: open_log(&output.stdout)?, hold })
    });
    let kept = async {
        let (log, hold) = match found.await.map_err(io::Error::other)?? {
            TerminalSearch::NoTerminal => return Ok(()),
            TerminalSearch::HungUp => {
                report_hang_up(runtime, container.clone(), &events);
                return Ok(());
            }
            TerminalSearch::Held { log, hold } => (log, hold),
        };
        let running = (*running).as_ref();
        ended(running.monitor.pidfd.as_fd()).await?;
        // A monitor that was not killed has copied everything, and recorded the end of its container.
        let (containers, id) = (runtime.clone(), container.clone());
        let recorded = tokio::task::spawn_blocking(move || containers.end_is_recorded(&id));
        if recorded.await.map_err(io::Error::other)?.map_err(io::Error::other)? {
            return Ok(());
        }
        tracing::warn!(%container, "copying the terminal's output: the monitor was killed");
        copy(hold.as_fd().try_clone_to_owned()?, for_copying(&log)?, running.init.pidfd.as_fd()).await
    };
    let kept: io::Result<()> = kept.await;
    if let Err(error) = kept {
        tracing::warn!(%container, %error, "the task's terminal depends on its monitor alone");
    }
}

/// Reports that the terminal was hung up, once in the container's life. A mark in the container's directory says that
/// it was reported.
fn report_hang_up(runtime: Runtime, container: ContainerId, events: &TaskEvents) {
    events.emit_at_delivery(move || match runtime.mark(&container, Mark::HangUp) {
        Ok(true) => {
            tracing::warn!(%container, "the terminal was hung up: plugin and monitor were dead at once");
            Some(Content::TerminalHungUp {})
        }
        Ok(false) => None,
        Err(error) => {
            tracing::warn!(%container, %error, "a terminal was hung up, which cannot be reported");
            None
        }
    });
}

/// The log, open for writing, or its reader would see its end as soon as the monitor has gone. Not open for reading, or
/// the monitor would take this process for a reader. The opening succeeds, because the monitor holds both ends.
fn open_log(path: &Path) -> io::Result<OwnedFd> {
    let flags = (OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY).bits() as i32;
    let log = OwnedFd::from(OpenOptions::new().write(true).custom_flags(flags).open(path)?);
    match FileType::from_raw_mode(fstat(&log)?.st_mode) {
        FileType::Fifo | FileType::CharacterDevice => Ok(log),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "the log is neither a FIFO nor /dev/null")),
    }
}

/// The log, open for reading too, so that a log without a reader is no error for the copying process.
fn for_copying(log: &OwnedFd) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", log.as_raw_fd());
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    Ok(OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?.into())
}

async fn ended(pidfd: BorrowedFd<'_>) -> io::Result<()> {
    sys::watch(pidfd.try_clone_to_owned()?, Interest::READABLE)?.readable().await.map(drop)
}

/// Copies until the process has ended and nothing is left.
async fn copy(master: OwnedFd, log: OwnedFd, process: BorrowedFd<'_>) -> io::Result<()> {
    let master = sys::watch(master, Interest::READABLE)?;
    let mut end = Box::pin(ended(process));
    let mut over = false;
    let mut buffer = [0; 4096];
    loop {
        match read(master.get_ref(), &mut buffer) {
            Ok(0) | Err(Errno::IO) => return Ok(()),
            Ok(count) => write_all(&log, buffer.get(..count).unwrap_or_default()).await?,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if over => return Ok(()),
            Err(Errno::AGAIN) => tokio::select! {
                ready = master.readable() => {
                    let mut ready = ready?;
                    // Only what was there when we looked has been read; more may have come since.
                    if read_would_block(master.get_ref())? {
                        ready.clear_ready();
                    }
                }
                result = &mut end => {
                    result?;
                    over = true;
                }
            },
            Err(error) => return Err(error.into()),
        }
    }
}

fn read_would_block(master: &OwnedFd) -> io::Result<bool> {
    Ok(rustix::io::ioctl_fionread(master)? == 0)
}

async fn write_all(log: &OwnedFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match write(log, bytes) {
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            // Seldom: watched only then, because /dev/null cannot be.
            Err(Errno::AGAIN) => drop(sys::watch(log.try_clone()?, Interest::WRITABLE)?.writable().await?),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
