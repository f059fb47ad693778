//! The plugin's ends of a command's pipes and terminal, and the kept part of a command's output.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use runtime::TerminalSize;
use tokio::io::{Interest, unix::AsyncFd};

use crate::{error::TaskError, sys};

/// The kept part of a script check's output: its last bytes, as many as Nomad's own drivers keep.
const KEPT_OUTPUT: usize = 4096;
/// The size of one read from a pipe.
const CHUNK: usize = 32 * 1024;
/// More than the kernel holds of a terminal's output: 8 KiB on each side (drivers/tty/pty.c), 4 KiB in the line
/// discipline.
const TERMINAL_BUFFERS: usize = 64 * 1024;

/// The last bytes of a command's output.
#[derive(Default)]
pub struct OutputTail(pub Vec<u8>);

impl OutputTail {
    /// Appends output and drops the oldest bytes beyond the limit.
    pub fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
        let surplus = self.0.len().saturating_sub(KEPT_OUTPUT);
        self.0.drain(..surplus);
    }
}

/// The plugin's end of a pipe or a terminal, non-blocking.
pub struct Endpoint {
    descriptor: AsyncFd<OwnedFd>,
    /// The endpoint is the master side of a terminal.
    pub is_terminal: bool,
}

impl Endpoint {
    /// Makes a descriptor non-blocking and registers it.
    pub fn new(descriptor: impl Into<OwnedFd>) -> Result<Self, TaskError> {
        let descriptor = descriptor.into();
        let prepare = || -> io::Result<Self> {
            rustix::io::ioctl_fionbio(&descriptor, true)?;
            let is_terminal = rustix::termios::isatty(&descriptor);
            Ok(Self { is_terminal, descriptor: sys::watch(descriptor, Interest::READABLE | Interest::WRITABLE)? })
        };
        prepare().map_err(pipe_failed)
    }

    /// Reads the next bytes; empty at the end. A terminal without a user answers EIO, which is its end.
    pub async fn read(&self) -> Vec<u8> {
        let mut buffer = vec![0; CHUNK];
        let length =
            self.when_ready(Interest::READABLE, |fd| Ok(rustix::io::read(fd, &mut buffer)?)).await.unwrap_or(0);
        buffer.truncate(length);
        buffer
    }

    /// Runs an operation as soon as it does not block. A terminal with a closed other side is always ready, but may
    /// accept nothing: that is its end, not a reason to retry.
    async fn when_ready<T>(
        &self,
        interest: Interest,
        mut action: impl FnMut(&OwnedFd) -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            let mut guard = self.descriptor.ready(interest).await?;
            let closed = guard.ready().is_write_closed() || guard.ready().is_read_closed();
            match guard.try_io(|descriptor| action(descriptor.get_ref())) {
                Ok(result) => return result,
                Err(_) if closed => return Err(io::ErrorKind::BrokenPipe.into()),
                Err(_) => {}
            }
        }
    }

    /// The largest number of unread bytes that an ended command may have written. Other processes that hold the pipe
    /// may write for ever.
    pub fn unread(&self) -> usize {
        if self.is_terminal {
            return TERMINAL_BUFFERS;
        }
        // FIONREAD cannot fail on a pipe.
        rustix::io::ioctl_fionread(&self.descriptor).map_or(0, |count| usize::try_from(count).unwrap_or(usize::MAX))
    }

    /// Reads at most `limit` available bytes, and reduces the limit by their number. `None` if nothing is available.
    pub fn read_available(&self, limit: &mut usize) -> Option<Vec<u8>> {
        let mut buffer = vec![0; CHUNK.min(*limit)];
        let length = rustix::io::read(&self.descriptor, &mut buffer).ok().filter(|length| *length > 0)?;
        buffer.truncate(length);
        *limit -= length;
        Some(buffer)
    }

    /// Writes all bytes.
    pub async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = self.when_ready(Interest::WRITABLE, |fd| Ok(rustix::io::write(fd, bytes)?)).await?;
            bytes = &bytes[written..];
        }
        Ok(())
    }

    /// Sets the terminal's size. The kernel signals the change to the command.
    pub fn resize(&self, size: TerminalSize) {
        let size = rustix::termios::Winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 };
        if let Err(error) = rustix::termios::tcsetwinsize(self.descriptor.as_fd(), size) {
            tracing::debug!(%error, "terminal not resized");
        }
    }
}

/// An operation on a command's pipe failed.
pub fn pipe_failed(error: io::Error) -> TaskError {
    TaskError::Internal(format!("exec: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_bytes_of_the_output_are_kept() {
        let mut tail = OutputTail::default();
        tail.push(&vec![b'a'; KEPT_OUTPUT]);
        tail.push(b"end");
        assert_eq!(tail.0.len(), KEPT_OUTPUT);
        assert!(tail.0.ends_with(b"aend"));
    }
}
