//! A blob's bytes, decompressed.
//!
//! The first bytes tell the compression; the media type does not count.

use std::io::{self, Read};

use super::{blob::BlobReader, error::corrupt, gzip::Gzip};
use crate::limits::Limits;

/// A layer's unpacked bytes, in any compression.
pub enum Decoder {
    /// Not compressed.
    Plain(Box<BlobReader>),
    /// Compressed with gzip.
    Gzip(Box<Gzip<BlobReader>>),
    /// Compressed with zstd.
    Zstd(Box<Zstd>),
}

/// A zstd stream and what its window may take.
pub struct Zstd {
    decoder: zstd::stream::read::Decoder<'static, BlobReader>,
    window_log: u32,
}

/// The windows that the zstd library knows: 1 KiB to 2 GiB.
const ZSTD_WINDOW_LOGS: (u32, u32) = (10, 31);

impl Decoder {
    /// Chooses by the first bytes.
    pub fn new(mut blob: BlobReader, limits: &Limits) -> io::Result<Decoder> {
        let magic = blob.peek(4)?;
        if is_gzip(magic) {
            Ok(Decoder::Gzip(Box::new(Gzip::new(blob))))
        } else if is_zstd(magic) {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(blob)?;
            let (least, most) = ZSTD_WINDOW_LOGS;
            let window_log = limits.zstd_window.max(1).ilog2().clamp(least, most);
            decoder.window_log_max(window_log)?;
            Ok(Decoder::Zstd(Box::new(Zstd { decoder, window_log })))
        } else {
            Ok(Decoder::Plain(Box::new(blob)))
        }
    }

    /// The blob, which knows its digest.
    pub fn into_blob(self) -> BlobReader {
        match self {
            Decoder::Plain(blob) => *blob,
            Decoder::Gzip(gzip) => gzip.into_input(),
            Decoder::Zstd(zstd) => zstd.decoder.finish(),
        }
    }
}

/// Whether these four bytes begin a compressed blob.
pub fn is_compressed(magic: &[u8]) -> bool {
    is_gzip(magic) || is_zstd(magic)
}

fn is_gzip(magic: &[u8]) -> bool {
    magic.starts_with(&[0x1f, 0x8b])
}

/// A frame or a skippable frame, with which zstd:chunked blobs may begin.
fn is_zstd(magic: &[u8]) -> bool {
    matches!(magic, [0x28, 0xb5, 0x2f, 0xfd] | [0x50..=0x5f, 0x2a, 0x4d, 0x18])
}

impl Read for Decoder {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Decoder::Plain(blob) => blob.read(buffer),
            Decoder::Gzip(gzip) => gzip.read(buffer),
            Decoder::Zstd(zstd) => zstd.read(buffer),
        }
    }
}

impl Read for Zstd {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.decoder.read(buffer).map_err(|error| match error.to_string().as_str() {
            // Only the text distinguishes the library's errors.
            "Frame requires too much memory for decoding" => corrupt(&format!(
                "its zstd window is larger than {} bytes (image_limits.zstd_window_mib)",
                1u64 << self.window_log
            )),
            _ => error,
        })
    }
}
