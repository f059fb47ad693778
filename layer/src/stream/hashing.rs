//! The unpacked bytes: hashed, and bounded by the limits.

use std::{
    io::{self, BufRead, Read},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use super::error::corrupt;
use crate::{
    digest::{Algorithm, Digest, Hasher},
    limits::Limits,
};

/// Hashes and limits the unpacked bytes.
pub struct HashingReader<R> {
    inner: R,
    /// Bytes of the inner reader's buffer that were hashed but not consumed.
    ready: usize,
    hasher: Hasher,
    total: u64,
    compressed: Arc<AtomicU64>,
    limits: Limits,
}

impl<R: BufRead> HashingReader<R> {
    /// Takes a reader and the counter of compressed bytes.
    pub fn new(inner: R, algorithm: Algorithm, compressed: Arc<AtomicU64>, limits: Limits) -> Self {
        Self { inner, ready: 0, hasher: Hasher::new(algorithm), total: 0, compressed, limits }
    }

    /// The inner reader, the digest of all bytes, and their number.
    pub fn finish(self) -> (R, Digest, u64) {
        (self.inner, self.hasher.finish(), self.total)
    }

    fn check(&self) -> io::Result<()> {
        let limits = &self.limits;
        if self.total > limits.layer_bytes {
            return Err(corrupt(&format!("it unpacks to more than {} bytes", limits.layer_bytes)));
        }
        let compressed = self.compressed.load(Ordering::Relaxed);
        if self.total > limits.ratio_grace && self.total / limits.ratio.max(1) > compressed {
            return Err(corrupt(&format!("it unpacks to more than {} times its size", limits.ratio)));
        }
        Ok(())
    }
}

impl<R: BufRead> BufRead for HashingReader<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.ready == 0 {
            let fresh = loop {
                match self.inner.fill_buf() {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    result => break result?,
                }
            };
            self.hasher.update(fresh);
            self.ready = fresh.len();
            self.total += self.ready as u64;
            self.check()?;
        }
        // The inner reader returns the same bytes until they are consumed.
        let ready = self.ready;
        Ok(&self.inner.fill_buf()?[..ready])
    }

    fn consume(&mut self, length: usize) {
        let length = length.min(self.ready);
        self.inner.consume(length);
        self.ready -= length;
    }
}

impl<R: BufRead> Read for HashingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let available = self.fill_buf()?;
        let length = available.len().min(buffer.len());
        buffer[..length].copy_from_slice(&available[..length]);
        self.consume(length);
        Ok(length)
    }
}
