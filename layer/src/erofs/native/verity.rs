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
    let mut check = TreeCheck::new(blocks, uuid, root);
    check.update(bytes) && check.is_complete()
}

/// As [`is_tree`], but whole blocks may be missing at the end of the lowest level.
pub(super) fn is_beginning(bytes: &[u8], blocks: u64, uuid: [u8; 16], root: &[u8; HASH]) -> bool {
    let least = size(blocks) - lowest_level(blocks);
    let has_upper_levels = bytes.len() as u64 >= least && bytes.len().is_multiple_of(BLOCK_BYTES);
    has_upper_levels && TreeCheck::new(blocks, uuid, root).update(bytes)
}

/// Checks a header and a tree as they arrive.
pub(super) struct TreeCheck {
    /// The header, until it has arrived.
    header: Option<Vec<u8>>,
    /// Bytes of the level that arrives and of those below it, the lowest one first.
    levels: Vec<u64>,
    /// The hashes of the blocks of the level that arrives.
    hashes: Vec<u8>,
    /// The blocks of that level that were accepted.
    accepted: Vec<u8>,
    /// The beginning of the next block.
    part: Vec<u8>,
}

impl TreeCheck {
    /// Checks the tree of this number of blocks. `root` is the hash of its topmost block.
    pub(super) fn new(blocks: u64, uuid: [u8; 16], root: &[u8; HASH]) -> Self {
        let part = Vec::with_capacity(BLOCK_BYTES);
        let (header, levels) = (Some(header(blocks, uuid)), levels(blocks));
        Self { header, levels, hashes: root.to_vec(), accepted: Vec::new(), part }
    }

    /// Takes the next bytes. Returns whether all blocks so far are those of the tree.
    pub(super) fn update(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(BLOCK_BYTES - self.part.len()));
            self.part.extend_from_slice(now);
            bytes = later;
            if self.part.len() == BLOCK_BYTES && !self.accept() {
                return false;
            }
        }
        true
    }

    /// Whether all of the tree was accepted.
    pub(super) fn is_complete(&self) -> bool {
        self.header.is_none() && self.levels.is_empty() && self.part.is_empty()
    }

    /// Accepts the next block, which is whole, if it is right.
    fn accept(&mut self) -> bool {
        if let Some(header) = &self.header {
            if self.part != *header {
                return false;
            }
            self.header = None;
            self.part.clear();
            return true;
        }
        let Some(level) = self.levels.last() else { return false };
        let hash = &self.hashes[self.accepted.len() / BLOCK_BYTES * HASH..][..HASH];
        if Sha256::digest(&self.part)[..] != *hash {
            return false;
        }
        self.accepted.append(&mut self.part);
        if self.accepted.len() as u64 == *level {
            self.hashes = std::mem::take(&mut self.accepted);
            self.levels.pop();
        }
        true
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: [u8; 16] = [7; 16];

    /// Header and tree of so many different blocks, and the root.
    fn tree(blocks: u64) -> (Vec<u8>, [u8; HASH]) {
        let mut builder = HashTreeBuilder::default();
        for number in 0..blocks {
            let mut block = [0; BLOCK_BYTES];
            block[..8].copy_from_slice(&number.to_le_bytes());
            builder.update(&block);
        }
        let tree = builder.finish();
        ([header(blocks, UUID), tree.levels].concat(), tree.root)
    }

    /// Passes bytes on in pieces. Returns the number of accepted bytes, and whether they are a whole tree.
    fn pass(blocks: u64, root: &[u8; HASH], bytes: &[u8], piece: usize) -> (usize, bool) {
        let mut check = TreeCheck::new(blocks, UUID, root);
        let accepted = bytes.chunks(piece).take_while(|piece| check.update(piece)).map(<[u8]>::len).sum();
        (accepted, check.is_complete())
    }

    #[test]
    fn a_tree_is_accepted_in_pieces_of_any_size() {
        for blocks in [2, 128, 129, 128 * 128 + 1] {
            let (bytes, root) = tree(blocks);
            for piece in [1, 1000, BLOCK_BYTES, 3 * BLOCK_BYTES + 1, bytes.len()] {
                assert_eq!(pass(blocks, &root, &bytes, piece), (bytes.len(), true), "{blocks}, {piece}");
            }
            assert!(!pass(blocks, &root, &bytes[..bytes.len() - 1], 1000).1, "{blocks}");
            assert!(is_tree(&bytes, blocks, UUID, &root));
            let longer = [&bytes[..], &[0; BLOCK_BYTES]].concat();
            assert_eq!(pass(blocks, &root, &longer, BLOCK_BYTES).0, bytes.len(), "{blocks}");
        }
    }

    #[test]
    fn a_tree_is_refused_with_its_first_wrong_block() {
        for blocks in [2, 129] {
            let (right, root) = tree(blocks);
            for wrong in (0..right.len()).step_by(1021) {
                let mut bytes = right.clone();
                bytes[wrong] ^= 1;
                let before = wrong - wrong % BLOCK_BYTES;
                assert_eq!(pass(blocks, &root, &bytes, BLOCK_BYTES), (before, false), "{blocks}, {wrong}");
            }
            let mut check = TreeCheck::new(blocks, [0; 16], &root);
            assert!(!check.update(&right[..BLOCK_BYTES]) && !check.update(&right[BLOCK_BYTES..]), "another header");
            assert_eq!(pass(blocks, &[0; HASH], &right, BLOCK_BYTES).0, BLOCK_BYTES, "another root");
            assert_eq!(pass(blocks + 128, &root, &right, BLOCK_BYTES).0, 0, "another number of blocks");
        }
    }
}
