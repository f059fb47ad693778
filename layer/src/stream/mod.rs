//! The way of a layer's bytes: what arrives → hash → inflate → hash → unpacked bytes.
//!
//! [`Feed`] hashes the blob as it arrives, [`Decoder`] inflates by looking at the first bytes rather than the media type,
//! [`Hashed`] hashes what comes out and ends a stream that grows beyond its limits. Nothing is stored.

mod gzip;

use std::{
    io::{self, BufRead, Read},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
};

use bytes::{Buf, Bytes, BytesMut};

use gzip::Gzip;

use crate::{
    buffers::{Buffer, Buffers},
    digest::{Algorithm, Digest, Hasher},
    limits::Limits,
};

/// A piece of a blob on its way to the unpacker. A channel that closes before `End` means that the pull was given up.
#[derive(Debug)]
pub enum Piece {
    /// The next bytes.
    Data(Bytes),
    /// The end of the blob.
    End,
}

/// The error of a stream that is not what it should be.
pub(crate) fn corrupt(problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem.to_owned())
}

/// The error of a stream whose other end is gone.
pub fn aborted() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the pull was given up")
}

/// The blob as it arrives, hashed.
pub struct Feed {
    pieces: tokio::sync::mpsc::Receiver<Piece>,
    current: Bytes,
    hasher: Hasher,
    /// Bytes that arrived, shared with who judges the ratio.
    seen: Arc<AtomicU64>,
    ended: bool,
}

impl Feed {
    /// A feed of the pieces that arrive in a channel.
    pub fn new(pieces: tokio::sync::mpsc::Receiver<Piece>, algorithm: Algorithm) -> Self {
        let seen = Arc::default();
        Self { pieces, current: Bytes::new(), hasher: Hasher::new(algorithm), seen, ended: false }
    }

    /// The counter of the bytes that arrived so far.
    pub fn seen(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.seen)
    }

    fn receive(&mut self) -> io::Result<Option<Bytes>> {
        while !self.ended {
            match self.pieces.blocking_recv() {
                Some(Piece::Data(data)) if data.is_empty() => {}
                Some(Piece::Data(data)) => {
                    self.hasher.update(&data);
                    self.seen.fetch_add(data.len() as u64, Ordering::Relaxed);
                    return Ok(Some(data));
                }
                Some(Piece::End) => self.ended = true,
                None => return Err(aborted()),
            }
        }
        Ok(None)
    }

    /// The first bytes without consuming them; fewer than asked for only at the end.
    fn peek(&mut self, length: usize) -> io::Result<&[u8]> {
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
        Ok((self.hasher.finish(), self.seen.load(Ordering::Relaxed)))
    }
}

impl BufRead for Feed {
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

impl Read for Feed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let available = self.fill_buf()?;
        let length = available.len().min(buffer.len());
        buffer[..length].copy_from_slice(&available[..length]);
        self.consume(length);
        Ok(length)
    }
}

/// A layer's unpacked bytes, whatever its compression.
pub enum Decoder {
    /// Not compressed.
    Plain(Box<Feed>),
    /// Compressed with gzip.
    Gzip(Box<Gzip<Feed>>),
    /// Compressed with zstd.
    Zstd(Box<Zstd>),
}

/// A zstd stream and what its window may take.
pub struct Zstd {
    decoder: zstd::stream::read::Decoder<'static, Feed>,
    window_log: u32,
}

/// The windows that the zstd library knows: 1 KiB to 2 GiB.
const ZSTD_WINDOW_LOGS: (u32, u32) = (10, 31);

impl Decoder {
    /// Chooses by the first bytes.
    pub fn new(mut feed: Feed, limits: &Limits) -> io::Result<Decoder> {
        let magic = feed.peek(4)?;
        if is_gzip(magic) {
            Ok(Decoder::Gzip(Box::new(Gzip::new(feed))))
        } else if is_zstd(magic) {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(feed)?;
            let (least, most) = ZSTD_WINDOW_LOGS;
            let window_log = limits.zstd_window.max(1).ilog2().clamp(least, most);
            decoder.window_log_max(window_log)?;
            Ok(Decoder::Zstd(Box::new(Zstd { decoder, window_log })))
        } else {
            Ok(Decoder::Plain(Box::new(feed)))
        }
    }

    /// The feed, to learn the blob's digest.
    pub fn into_feed(self) -> Feed {
        match self {
            Decoder::Plain(feed) => *feed,
            Decoder::Gzip(gzip) => gzip.input,
            Decoder::Zstd(zstd) => zstd.decoder.finish(),
        }
    }
}

/// Whether these four bytes begin something that is inflated.
pub fn is_compressed(magic: &[u8]) -> bool {
    is_gzip(magic) || is_zstd(magic)
}

fn is_gzip(magic: &[u8]) -> bool {
    magic.starts_with(&[0x1f, 0x8b])
}

/// A frame, or one to be skipped: zstd:chunked blobs may begin with that.
fn is_zstd(magic: &[u8]) -> bool {
    matches!(magic, [0x28, 0xb5, 0x2f, 0xfd] | [0x50..=0x5f, 0x2a, 0x4d, 0x18])
}

impl Read for Decoder {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Decoder::Plain(feed) => feed.read(buffer),
            Decoder::Gzip(gzip) => gzip.read(buffer),
            Decoder::Zstd(zstd) => zstd.read(buffer),
        }
    }
}

impl Read for Zstd {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.decoder.read(buffer).map_err(|error| match error.to_string().as_str() {
            // The library tells its errors apart by text only.
            "Frame requires too much memory for decoding" => corrupt(&format!(
                "its zstd window is larger than {} bytes (image_limits.zstd_window_mib)",
                1u64 << self.window_log
            )),
            _ => error,
        })
    }
}

/// Hashes and limits the unpacked bytes.
pub struct Hashed<R> {
    inner: R,
    /// How much of what the reader has at hand was hashed but not consumed.
    ready: usize,
    hasher: Hasher,
    total: u64,
    compressed: Arc<AtomicU64>,
    limits: Limits,
}

impl<R: BufRead> Hashed<R> {
    /// Takes a reader and the counter of compressed bytes.
    pub fn new(inner: R, algorithm: Algorithm, compressed: Arc<AtomicU64>, limits: Limits) -> Self {
        Self { inner, ready: 0, hasher: Hasher::new(algorithm), total: 0, compressed, limits }
    }

    /// The inner reader, the digest of all that was read, and how much it was.
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

impl<R: BufRead> BufRead for Hashed<R> {
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
        // What is at hand stays the same until it is consumed.
        let ready = self.ready;
        Ok(&self.inner.fill_buf()?[..ready])
    }

    fn consume(&mut self, length: usize) {
        let length = length.min(self.ready);
        self.inner.consume(length);
        self.ready -= length;
    }
}

impl<R: BufRead> Read for Hashed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let available = self.fill_buf()?;
        let length = available.len().min(buffer.len());
        buffer[..length].copy_from_slice(&available[..length]);
        self.consume(length);
        Ok(length)
    }
}

/// Blocks from one thread to another, so that inflating and writing run side by side.
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
            // What was read returns before the next one is waited for.
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

/// Sends all of `reader` into a pipe. Ends early without an error when nobody reads any more.
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
            // Nobody listening is fine: then the other side has its own error.
            drop(pipe.send(Err(error)));
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn feed(blob: &[u8], chunk: usize) -> Feed {
        let (sender, receiver) = tokio::sync::mpsc::channel(100_000);
        for part in blob.chunks(chunk) {
            sender.try_send(Piece::Data(Bytes::copy_from_slice(part))).unwrap();
        }
        sender.try_send(Piece::End).unwrap();
        Feed::new(receiver, Algorithm::Sha256)
    }

    fn decode(blob: &[u8], chunk: usize) -> io::Result<Vec<u8>> {
        let mut decoder = Decoder::new(feed(blob, chunk), &Limits::default())?;
        let mut out = Vec::new();
        decoder.read_to_end(&mut out)?;
        let (digest, size) = decoder.into_feed().finish()?;
        assert_eq!((digest, size), (Digest::sha256(blob), blob.len() as u64));
        Ok(out)
    }

    fn gzip(data: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::GzBuilder::new()
            .filename("name")
            .comment("comment")
            .extra(vec![1, 2, 3])
            .write(Vec::new(), flate2::Compression::fast());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    fn sample() -> Vec<u8> {
        (0..200_000u32).flat_map(|n| (n / 7).to_le_bytes()).collect()
    }

    #[test]
    fn all_compressions_in_any_chunking() {
        let data = sample();
        let two_members = [gzip(&data[..1000]), gzip(&data[1000..])].concat();
        let zstd = zstd::encode_all(&data[..], 3).unwrap();
        let two_frames = [zstd::encode_all(&data[..9], 3).unwrap(), zstd::encode_all(&data[9..], 3).unwrap()].concat();
        for blob in [data.clone(), gzip(&data), two_members, zstd, two_frames] {
            for chunk in [13, 4096, 1 << 20] {
                assert!(decode(&blob, chunk).unwrap() == data, "chunk {chunk}");
            }
        }
        assert_eq!(decode(b"", 1).unwrap(), b"");
    }

    #[test]
    fn truncation_and_junk_are_errors() {
        let blob = gzip(&sample());
        assert!(decode(&blob[..blob.len() / 2], 4096).is_err());
        assert!(decode(&blob[..blob.len() - 4], 4096).is_err());
        for junk in [&b"junk"[..], &[0; 512]] {
            assert!(decode(&[&blob[..], junk].concat(), 4096).is_err());
            let zstd = zstd::encode_all(&b"data"[..], 3).unwrap();
            assert!(decode(&[&zstd[..], junk].concat(), 4096).is_err());
        }
    }

    #[test]
    fn a_closed_channel_is_no_end() {
        let (sender, receiver) = tokio::sync::mpsc::channel(4);
        sender.try_send(Piece::Data(Bytes::from_static(b"abcdef"))).unwrap();
        drop(sender);
        let mut feed = Feed::new(receiver, Algorithm::Sha256);
        let error = io::copy(&mut feed, &mut io::sink()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
    }

    #[test]
    fn bombs_are_stopped() {
        let limits = Limits { ratio_grace: 1000, ratio: 10, ..Default::default() };
        let blob = gzip(&vec![0; 10 << 20]);
        let feed = feed(&blob, 1 << 20);
        let seen = feed.seen();
        let decoder = Decoder::new(feed, &limits).unwrap();
        let mut hashed = Hashed::new(io::BufReader::new(decoder), Algorithm::Sha256, seen, limits);
        let error = io::copy(&mut hashed, &mut io::sink()).unwrap_err().to_string();
        assert!(error.contains("10 times"), "{error}");
    }
}
