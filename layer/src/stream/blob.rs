//! The blob as it arrives, piece by piece, hashed on the way.

use std::{
    io::{self, BufRead, Read},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::{Buf, Bytes, BytesMut};
use tokio::sync::mpsc;

use super::error::aborted;
use crate::digest::{Algorithm, Digest, Hasher};

/// A piece of a blob on its way to the unpacker. A channel that closes before `End` means that the pull was given up.
#[derive(Debug)]
pub enum Piece {
    /// The next bytes.
    Data(Bytes),
    /// The end of the blob.
    End,
}

/// The blob as it arrives, hashed.
pub struct BlobReader {
    pieces: mpsc::Receiver<Piece>,
    current: Bytes,
    hasher: Hasher,
    /// Bytes that arrived so far, shared with [`super::HashingReader`].
    received: Arc<AtomicU64>,
    ended: bool,
}

impl BlobReader {
    /// Reads the pieces that arrive in a channel.
    pub fn new(pieces: mpsc::Receiver<Piece>, algorithm: Algorithm) -> Self {
        let received = Arc::default();
        Self { pieces, current: Bytes::new(), hasher: Hasher::new(algorithm), received, ended: false }
    }

    /// The counter of the bytes that arrived so far.
    pub fn received(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.received)
    }

    fn receive(&mut self) -> io::Result<Option<Bytes>> {
        while !self.ended {
            match self.pieces.blocking_recv() {
                Some(Piece::Data(data)) if data.is_empty() => {}
                Some(Piece::Data(data)) => {
                    self.hasher.update(&data);
                    self.received.fetch_add(data.len() as u64, Ordering::Relaxed);
                    return Ok(Some(data));
                }
                Some(Piece::End) => self.ended = true,
                None => return Err(aborted()),
            }
        }
        Ok(None)
    }

    /// The first bytes without consuming them; fewer than asked for only at the end.
    pub(super) fn peek(&mut self, length: usize) -> io::Result<&[u8]> {
        while self.current.len() < length {
            let Some(more) = self.receive()? else { break };
            let mut joined = BytesMut::from(&self.current[..]);
            joined.extend_from_slice(&more);
            self.current = joined.freeze();
        }
        Ok(&self.current[..self.current.len().min(length)])
    }

    /// The blob's digest and size, if all of it was read.
    pub fn finish(mut self) -> io::Result<(Digest, u64)> {
        if !self.fill_buf()?.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "data after the end of the compressed stream"));
        }
        Ok((self.hasher.finish(), self.received.load(Ordering::Relaxed)))
    }
}

impl BufRead for BlobReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.current.is_empty()
            && let Some(data) = self.receive()?
        {
            self.current = data;
        }
        Ok(&self.current)
    }

    fn consume(&mut self, length: usize) {
        self.current.advance(length);
    }
}

impl Read for BlobReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let available = self.fill_buf()?;
        let length = available.len().min(buffer.len());
        buffer[..length].copy_from_slice(&available[..length]);
        self.consume(length);
        Ok(length)
    }
}
