//! Compressed data of a regular file, as zstd in the form of EROFS (`erofs_fs.h` and `fs/erofs/zmap.c` of Linux).
//!
//! A file is cut into chunks of 128 KiB. Each chunk is one frame of zstd, which takes fewer blocks than its data and
//! begins with zeros so that it ends at the end of a block. A chunk that would not become smaller is stored as it is.
//! The kernel decompresses only what a process reads, so a chunk bounds what a small read costs.
//!
//! An index of 8 bytes for each block of data follows the inode. It is a function of the file's first block, its size,
//! and the number of blocks of each chunk.

use std::{fs::File, io, os::unix::fs::FileExt};

use zstd::{
    bulk::Compressor,
    zstd_safe::{self, CParameter},
};

use super::format::{BLOCK, SUPER, SUPER_BYTES, blocks, u16_at, u32_at};

/// Bytes of data in a chunk. The last one of a file may have less.
pub(super) const CHUNK: u64 = 128 << 10;
/// How much smaller a chunk must become: one block of eight. Reads of it would be slower for less than that.
const WORTH: u64 = 8;
/// The level of zstd: about as small as gzip makes it.
const LEVEL: i32 = 6;
/// The number of zstd among the kernel's algorithms (`Z_EROFS_COMPRESSION_ZSTD`).
const ZSTD: u8 = 3;
/// Frames end at the end of a block, and chunks may have several blocks (`EROFS_FEATURE_INCOMPAT_*`).
const FEATURES: u32 = 1 | 2;
/// The offset of the features in the superblock. A bit for each algorithm follows.
const FEATURES_AT: usize = 80;
/// A file's chunks may have several blocks (`Z_EROFS_ADVISE_BIG_PCLUSTER_1`).
const SEVERAL_BLOCKS: u16 = 2;
/// Bytes of the header before an index, and of those that follow it unused.
const HEADER: u64 = 16;
/// Bytes of the index for one block of data.
const ENTRY: u64 = 8;
/// The kinds of entries (`Z_EROFS_LCLUSTER_TYPE_*`): a block that is stored as it is, the first block of a compressed
/// chunk, and one of its other blocks.
const STORED: u16 = 0;
const HEAD: u16 = 1;
const REST: u16 = 2;
/// Marks the second entry of a chunk, which has the number of the chunk's blocks (`Z_EROFS_LI_D0_CBLKCNT`).
const COUNT: u16 = 1 << 11;

/// Bytes of data in each chunk of a file.
fn chunk_sizes(size: u64) -> impl Iterator<Item = u64> {
    (0..size.div_ceil(CHUNK)).map(move |chunk| CHUNK.min(size - chunk * CHUNK))
}

/// The blocks that a file's data takes. Without chunks it is stored as it is.
pub(super) fn stored_blocks(size: u64, chunks: &[u8]) -> u64 {
    if chunks.is_empty() { blocks(size) } else { chunks.iter().copied().map(u64::from).sum() }
}

/// Zeros behind the data in a file's last block. The end of a compressed chunk is not among them.
pub(super) fn padding(size: u64, chunks: &[u8]) -> u64 {
    let last = size.checked_sub(1).map_or(0, |last| size - last / CHUNK * CHUNK);
    match chunks.last() {
        Some(stored) if u64::from(*stored) < blocks(last) => 0,
        _ => size.next_multiple_of(BLOCK) - size,
    }
}

/// Bytes between the end of an inode and the header of its index.
fn gap(end: u64) -> u64 {
    end.next_multiple_of(8) - end
}

/// Bytes of the index and of what precedes it, behind an inode that ends at `end`.
pub(super) fn index_size(end: u64, size: u64) -> u64 {
    gap(end) + HEADER + blocks(size) * ENTRY
}

/// The index of a compressed file, and what precedes it. The inode ends at the offset `end`, and the data begins at
/// `block`.
pub(super) fn index(end: u64, block: u32, size: u64, chunks: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; gap(end) as usize + 4];
    bytes.extend(SEVERAL_BLOCKS.to_le_bytes());
    bytes.extend([ZSTD, 0]);
    bytes.extend([0; 8]);
    let mut at = block;
    for (size, stored) in chunk_sizes(size).zip(chunks) {
        let (whole, stored) = (blocks(size) as u16, u32::from(*stored));
        if stored == u32::from(whole) {
            for block in at..at + stored {
                bytes.extend(entry(STORED, block.to_le_bytes()));
            }
        } else {
            bytes.extend(entry(HEAD, at.to_le_bytes()));
            for number in 1..whole {
                let back = if number == 1 { COUNT | stored as u16 } else { number };
                let [a, b] = back.to_le_bytes();
                let [c, d] = (whole - number).to_le_bytes();
                bytes.extend(entry(REST, [a, b, c, d]));
            }
        }
        at += stored;
    }
    bytes
}

fn entry(kind: u16, value: [u8; 4]) -> [u8; 8] {
    let ([a, b], [c, d, e, f]) = (kind.to_le_bytes(), value);
    [a, b, 0, 0, c, d, e, f]
}

/// Reads from an index, which may be hostile, the first block of the data and how many blocks each chunk takes. The
/// inode ends at the offset `end`. `None`: no file has such an index. The caller compares the bytes with those that
/// [`index`] makes.
pub(super) fn chunks_of(end: u64, size: u64, index: &[u8]) -> Option<(u32, Box<[u8]>)> {
    let entries = index.get((gap(end) + HEADER) as usize..)?;
    let block = u32_at(entries.get(..ENTRY as usize)?, 4);
    let mut entries = entries.chunks_exact(ENTRY as usize);
    let mut chunks = Vec::new();
    for size in chunk_sizes(size) {
        let whole = blocks(size) as u8;
        let (first, second) = (entries.next()?, (whole > 1).then(|| entries.next()).flatten());
        let stored = match (u16_at(first, 0), second) {
            (HEAD, Some(second)) => u8::try_from(u16_at(second, 4) & !COUNT).ok()?,
            (STORED, _) => whole,
            _ => return None,
        };
        chunks.push(Some(stored).filter(|stored| (1..=whole).contains(stored))?);
        for _ in 2..whole {
            entries.next()?;
        }
    }
    // A file without a compressed chunk has no index.
    let compressed = chunk_sizes(size).zip(&chunks).any(|(size, stored)| u64::from(*stored) < blocks(size));
    compressed.then(|| (block, chunks.into()))
}

/// Adds to a superblock, with which `superblock` ends, what the kernel must know of compressed files.
pub(super) fn announce(superblock: &mut Vec<u8>) {
    let base = superblock.len() - SUPER_BYTES;
    superblock[base + FEATURES_AT..][..4].copy_from_slice(&FEATURES.to_le_bytes());
    superblock[base + FEATURES_AT + 4..][..2].copy_from_slice(&(1u16 << ZSTD).to_le_bytes());
    // The length of the following, and the window in kibibytes as a power of two.
    superblock.extend(6u16.to_le_bytes());
    superblock.extend([0, (CHUNK.trailing_zeros() - 10) as u8, 0, 0, 0, 0]);
}

/// Whether an image that this crate wrote has compressed files.
///
/// # Errors
/// The file cannot be read, or is too short.
pub fn is_compressed(image: &File) -> io::Result<bool> {
    let mut features = [0; 4];
    image.read_exact_at(&mut features, (SUPER + FEATURES_AT) as u64)?;
    Ok(u32::from_le_bytes(features) == FEATURES)
}

/// Compresses chunks.
pub(super) struct ChunkWriter {
    compressor: Compressor<'static>,
    frame: Vec<u8>,
}

impl ChunkWriter {
    pub(super) fn new() -> io::Result<Self> {
        let mut compressor = Compressor::new(LEVEL)?;
        // The kernel keeps a window of this size for each processor.
        compressor.set_parameter(CParameter::WindowLog(CHUNK.trailing_zeros()))?;
        Ok(Self { compressor, frame: vec![0; zstd_safe::compress_bound(CHUNK as usize)] })
    }

    /// The whole blocks to store for a chunk: a frame, or the data itself.
    pub(super) fn store(&mut self, data: &[u8]) -> io::Result<Vec<u8>> {
        let length = self.compressor.compress_to_buffer(data, &mut self.frame[..])? as u64;
        let whole = blocks(data.len() as u64);
        if blocks(length) + whole.div_ceil(WORTH) > whole {
            return Ok([data, &vec![0; (whole * BLOCK) as usize - data.len()]].concat());
        }
        let zeros = length.next_multiple_of(BLOCK) - length;
        Ok([&vec![0; zeros as usize], &self.frame[..length as usize]].concat())
    }
}
