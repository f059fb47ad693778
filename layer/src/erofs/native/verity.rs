//! The hash tree behind a native image, in the format of dm-verity (`dm-verity.rst` of Linux) as veritysetup(8) writes
//! it: SHA-256, blocks of 4096 bytes, no salt.
//!
//! The first block is the header. The levels of the tree follow, the topmost one first. The root is the hash of the
//! topmost block. There is no salt: the same layer must give the same bytes, and a salt would protect nothing whose
//! bytes the registry chooses.

use sha2::{Digest as _, Sha256};

use super::super::format::BLOCK;

const BLOCK_BYTES: usize = BLOCK as usize;
/// Bytes of one hash.
pub(super) const HASH: usize = 32;
const PER_BLOCK: u64 = BLOCK / HASH as u64;

/// The hash tree of a number of blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HashTree {
    /// The hash of the topmost block.
    pub root: [u8; HASH],
    /// The levels as they follow the header.
    pub levels: Vec<u8>,
}

/// Builds a hash tree from the blocks as they come. It keeps 32 bytes for each block.
#[derive(Default)]
pub struct HashTreeBuilder {
    hasher: Sha256,
    /// Bytes of the current block that were hashed.
    part: usize,
    hashes: Vec<u8>,
}

impl HashTreeBuilder {
    /// Hashes more bytes.
    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(BLOCK_BYTES - self.part));
            self.hasher.update(now);
            self.part += now.len();
            if self.part == BLOCK_BYTES {
                self.hashes.extend(self.hasher.finalize_reset());
                self.part = 0;
            }
            bytes = later;
        }
    }

    /// The tree of all bytes. They must have been at least two whole blocks, as in each image.
    pub fn finish(self) -> HashTree {
        let mut levels = vec![whole_blocks(self.hashes)];
        while let Some(top) = levels.last().filter(|level| level.len() > BLOCK_BYTES) {
            let hashes = top.chunks(BLOCK_BYTES).flat_map(Sha256::digest).collect();
            levels.push(whole_blocks(hashes));
        }
        let root = Sha256::digest(levels.last().map_or(&[][..], |top| top)).into();
        levels.reverse();
        HashTree { root, levels: levels.concat() }
    }
}

fn whole_blocks(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
    bytes
}

/// Bytes of the header and the tree of so many blocks.
pub(super) fn size(blocks: u64) -> u64 {
    BLOCK + levels(blocks).iter().sum::<u64>()
}

/// Bytes of the level that holds the hashes of so many blocks. It is the end of the image.
pub(super) fn lowest_level(blocks: u64) -> u64 {
    blocks.div_ceil(PER_BLOCK) * BLOCK
}

/// Bytes of each level of the tree of so many blocks, the lowest one first.
fn levels(blocks: u64) -> Vec<u64> {
    let mut level = lowest_level(blocks);
    let mut levels = vec![level];
    while level > BLOCK {
        level = lowest_level(level / BLOCK);
        levels.push(level);
    }
    levels
}

/// Whether a header and a tree are those of so many blocks: each level has the hashes of the one below it, and the
/// topmost block has this hash. The blocks themselves are not looked at.
pub(super) fn is_tree(bytes: &[u8], blocks: u64, uuid: [u8; 16], root: &[u8; HASH]) -> bool {
    bytes.len() as u64 == size(blocks) && is_beginning(bytes, blocks, uuid, root)
}

/// As [`is_tree`], but whole blocks may be missing at the end of the lowest level.
pub(super) fn is_beginning(bytes: &[u8], blocks: u64, uuid: [u8; 16], root: &[u8; HASH]) -> bool {
    let lengths = size(blocks) - lowest_level(blocks)..=size(blocks);
    if !lengths.contains(&(bytes.len() as u64)) || bytes[..BLOCK_BYTES] != header(blocks, uuid) {
        return false;
    }
    let mut hashes = &root[..];
    let mut rest = &bytes[BLOCK_BYTES..];
    for level in levels(blocks).into_iter().rev() {
        let (level, below) = rest.split_at(rest.len().min(level as usize));
        if !blocks_match(hashes, level) {
            return false;
        }
        (hashes, rest) = (level, below);
    }
    true
}

/// Whether each of these whole blocks has its hash. There may be more hashes than blocks, but not fewer.
pub fn blocks_match(hashes: &[u8], blocks: &[u8]) -> bool {
    let enough = blocks.len().is_multiple_of(BLOCK_BYTES) && hashes.len() / HASH >= blocks.len() / BLOCK_BYTES;
    let mut pairs = blocks.chunks_exact(BLOCK_BYTES).zip(hashes.chunks_exact(HASH));
    enough && pairs.all(|(block, hash)| Sha256::digest(block)[..] == *hash)
}

/// The header (`struct verity_sb` of cryptsetup).
pub(super) fn header(blocks: u64, uuid: [u8; 16]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(BLOCK_BYTES);
    bytes.extend(b"verity\0\0");
    // The version of the header, and of the tree's format.
    bytes.extend(1u32.to_le_bytes());
    bytes.extend(1u32.to_le_bytes());
    bytes.extend(uuid);
    let mut algorithm = [0; 32];
    algorithm[..6].copy_from_slice(b"sha256");
    bytes.extend(algorithm);
    // The sizes of blocks of data and of the tree.
    bytes.extend((BLOCK as u32).to_le_bytes());
    bytes.extend((BLOCK as u32).to_le_bytes());
    bytes.extend(blocks.to_le_bytes());
    // The salt, which is empty, and its size.
    bytes.resize(BLOCK_BYTES, 0);
    bytes
}
