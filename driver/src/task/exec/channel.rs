//! Our ends of a command's pipes and terminal, and what is kept of what comes out of them.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use runtime::TerminalSize;
use tokio::io::{Interest, unix::AsyncFd};

use super::pipe_failed;
use crate::{sys, task::TaskError};

/// What a script check keeps of a command's output: its end (as Nomad's own drivers).
const KEPT_OUTPUT: usize = 4096;
/// One read from a pipe.
const CHUNK: usize = 32 * 1024;
/// More than the kernel holds of a terminal's output (drivers/tty/pty.c gives each side 8 KiB, the line discipline 4 KiB more).
const TERMINAL_BUFFERS: usize = 64 * 1024;

/// The last bytes of what was pushed.
#[derive(Default)]
pub(super) struct Tail(pub Vec<u8>);

impl Tail {
    pub fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
        let surplus = self.0.len().saturating_sub(KEPT_OUTPUT);
        self.0.drain(..surplus);
    }
}

/// Our end of a pipe or a terminal, non-blocking.
pub(super) struct Channel {
    descriptor: AsyncFd<OwnedFd>,
    pub is_terminal: bool,
}

impl Channel {
    pub fn new(descriptor: OwnedFd) -> Result<Self, TaskError> {
        let prepare = || -> io::Result<Self> {
            rustix::io::ioctl_fionbio(&descriptor, true)?;
            let is_terminal = rustix::termios::isatty(&descriptor);
            Ok(Self { is_terminal, descriptor: sys::watch(descriptor, Interest::READABLE | Interest::WRITABLE)? })
        };
        prepare().map_err(pipe_failed)
    }

    /// The next bytes; empty at the end. A terminal whose last user is gone answers EIO, which is its end.
    pub async fn read(&self) -> Vec<u8> {
        let mut buffer = vec![0; CHUNK];
        let length =
            self.when_ready(Interest::READABLE, |fd| Ok(rustix::io::read(fd, &mut buffer)?)).await.unwrap_or(0);
        buffer.truncate(length);
        buffer
    }

    /// Does something as soon as that does not block. A terminal whose other side is closed counts as ready for ever, and yet may
    /// take nothing: that is its end, not a reason to try again and again.
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

    /// How many bytes may still be what an ended command wrote. Others who hold the pipe may go on writing for ever.
    pub fn left(&self) -> usize {
        if self.is_terminal {
            return TERMINAL_BUFFERS;
        }
        // A pipe always knows.
        rustix::io::ioctl_fionread(&self.descriptor).map_or(0, |count| usize::try_from(count).unwrap_or(usize::MAX))
    }

    /// What is there now, at most `left` bytes, which become fewer by it; `None` when there is nothing.
    pub fn take(&self, left: &mut usize) -> Option<Vec<u8>> {
        let mut buffer = vec![0; CHUNK.min(*left)];
        let length = rustix::io::read(&self.descriptor, &mut buffer).ok().filter(|length| *length > 0)?;
        buffer.truncate(length);
        *left -= length;
        Some(buffer)
    }

    pub async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = self.when_ready(Interest::WRITABLE, |fd| Ok(rustix::io::write(fd, bytes)?)).await?;
            bytes = &bytes[written..];
        }
        Ok(())
    }

    pub fn resize(&self, size: TerminalSize) {
        let size = rustix::termios::Winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 };
        if let Err(error) = rustix::termios::tcsetwinsize(self.descriptor.as_fd(), size) {
            tracing::debug!(%error, "terminal not resized");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_output_is_kept() {
        let mut tail = Tail::default();
        tail.push(&vec![b'a'; KEPT_OUTPUT]);
        tail.push(b"end");
        assert_eq!(tail.0.len(), KEPT_OUTPUT);
        assert!(tail.0.ends_with(b"aend"));
    }
}
