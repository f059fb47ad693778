//! The log FIFOs of a container, open for writing alone: their content outlives the container until it is counted.
//!
//! The monitor holds the FIFOs of its container and counts at the end what no reader took. After the monitor was
//! killed, a plugin does that with these writers.

use std::{io, os::fd::OwnedFd};

use rustix::io::Errno;

use super::{
    fifo::{FileId, has_no_reader, waiting_bytes},
    stream::OutputStream,
};

/// FIFOs that are open for writing alone.
#[derive(Debug, Default)]
pub struct LogWriters {
    open: Vec<(OutputStream, FileId, OwnedFd)>,
    missed: bool,
}

impl LogWriters {
    /// Adds the FIFO of a stream, which `open` opens for writing in non-blocking mode. Both streams may have the same
    /// FIFO. A FIFO that no other process has open for reading cannot be opened: then its content is gone.
    pub(super) fn add(
        &mut self,
        stream: OutputStream,
        id: FileId,
        open: impl FnOnce() -> io::Result<OwnedFd>,
    ) -> io::Result<()> {
        if self.open.iter().any(|(_, known, _)| *known == id) {
            return Ok(());
        }
        match open() {
            Ok(writer) => self.open.push((stream, id, writer)),
            Err(error) if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => self.missed = true,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Whether a FIFO had lost its content already.
    pub fn missed(&self) -> bool {
        self.missed
    }

    /// Closes the FIFOs. Returns the number of bytes in each FIFO that has no reader: they are lost now. A process that
    /// holds a FIFO open for reading and writing counts as a reader here. The bytes are then not lost yet, and that
    /// process counts them.
    pub fn close(self) -> io::Result<Vec<(OutputStream, u64)>> {
        let mut lost = Vec::new();
        for (stream, _, writer) in self.open {
            let waiting = waiting_bytes(&writer)?;
            if waiting > 0 && has_no_reader(&writer)? {
                lost.push((stream, waiting));
            }
        }
        Ok(lost)
    }
}
