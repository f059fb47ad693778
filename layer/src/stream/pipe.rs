//! Blocks of bytes from one thread to another, so that decompressing and writing run at the same time.

use std::{
    io::{self, BufRead, Read},
    sync::mpsc,
};

use crate::buffers::{Buffer, Buffers};

/// The reading end.
pub(crate) struct Pipe {
    blocks: mpsc::Receiver<io::Result<Buffer>>,
    current: Option<Buffer>,
    position: usize,
}

/// How many blocks may wait in a pipe.
const PIPE_BLOCKS: usize = 8;

impl Pipe {
    pub(crate) fn new() -> (mpsc::SyncSender<io::Result<Buffer>>, Pipe) {
        let (sender, blocks) = mpsc::sync_channel(PIPE_BLOCKS);
        (sender, Pipe { blocks, current: None, position: 0 })
    }
}

impl BufRead for Pipe {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.current.as_ref().is_none_or(|block| block.as_ref().len() == self.position) {
            // The buffer goes back before the wait for the next one.
            self.current = None;
            match self.blocks.recv() {
                Ok(block) => (self.current, self.position) = (Some(block?), 0),
                Err(_) => return Ok(&[]),
            }
        }
        Ok(self.current.as_ref().map_or(&[], |block| &block.as_ref()[self.position..]))
    }

    fn consume(&mut self, length: usize) {
        self.position += length;
    }
}

impl Read for Pipe {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let current = self.fill_buf()?;
        let length = buffer.len().min(current.len());
        buffer[..length].copy_from_slice(&current[..length]);
        self.consume(length);
        Ok(length)
    }
}

/// Sends all of `reader` into a pipe. Ends early without an error if the reading end is gone.
pub(crate) fn pump(reader: &mut impl Read, pipe: &mpsc::SyncSender<io::Result<Buffer>>) {
    let buffers = Buffers::default();
    loop {
        let mut block = buffers.take();
        let mut result = Ok(());
        while !block.space().is_empty() {
            match reader.read(block.space()) {
                Ok(0) => break,
                Ok(length) => block.fill(length),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        let empty = block.as_ref().is_empty();
        if (!empty && pipe.send(Ok(block)).is_err()) || (empty && result.is_ok()) {
            return;
        }
        if let Err(error) = result {
            // If the reading end is gone, it has an error of its own.
            drop(pipe.send(Err(error)));
            return;
        }
    }
}
