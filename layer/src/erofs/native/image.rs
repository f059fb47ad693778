//! A tree of files → the bytes of a native image, all but its data and its hash tree.

use std::{
    collections::{BTreeMap, HashMap},
    io::{self, Write},
    ops::Range,
};

use super::{
    super::{
        compressed,
        disk::Layout,
        format::BLOCK,
        tree::{Content, Id, Node, ROOT, Tree},
    },
    verity,
};
use crate::error::Problem;

/// The first block of the inodes.
const START: u64 = 1;
/// The longest metadata: some hundred thousand files. A reader keeps it in memory, with the tree that it describes.
pub(super) const MAX_METADATA: u64 = 64 << 20;

/// The parts of a native image, in bytes. All are multiples of 4096.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parts {
    /// The superblock, the inodes, the directories and the links.
    pub metadata: u64,
    /// The data of regular files, behind the metadata.
    pub data: u64,
    /// The hash tree with its header, behind the data.
    pub hash_tree: u64,
}

impl Parts {
    /// The file system: everything but the hash tree.
    pub fn file_system(&self) -> u64 {
        self.metadata + self.data
    }

    /// The whole image.
    pub fn total(&self) -> u64 {
        self.file_system() + self.hash_tree
    }

    /// The parts of an image of `total` bytes with so many bytes of metadata. `None`: no image has these lengths.
    pub fn of(metadata: u64, total: u64) -> Option<Self> {
        // The number of blocks decides the length, which grows with it.
        let length = |blocks: u64| blocks.saturating_mul(BLOCK).saturating_add(verity::size(blocks));
        let (mut low, mut high) = (1, total / BLOCK);
        while low < high {
            let middle = low + (high - low) / 2;
            if length(middle) < total { low = middle + 1 } else { high = middle }
        }
        let whole = metadata > 0 && metadata <= MAX_METADATA && metadata.is_multiple_of(BLOCK);
        let (file_system, hash_tree) = (low.checked_mul(BLOCK)?, verity::size(low));
        let parts = Self { metadata, data: file_system.checked_sub(metadata)?, hash_tree };
        (whole && file_system.checked_add(hash_tree)? == total).then_some(parts)
    }

    /// The offsets, in the image, of the hashes of some blocks of the file system. `range` begins and ends at a block.
    pub fn hashes_of(&self, range: Range<u64>) -> Range<u64> {
        hashes_in(&self.lowest_hashes(), range.start / BLOCK..range.end / BLOCK)
    }

    /// The offsets, in the image, of the blocks in which these hashes are. `range` is not empty.
    pub fn hash_blocks_of(&self, range: Range<u64>) -> Range<u64> {
        let hashes = self.hashes_of(range);
        hashes.start / BLOCK * BLOCK..hashes.end.next_multiple_of(BLOCK)
    }

    /// The offsets, in the image, of the lowest level of the hash tree: the hashes of the file system.
    pub fn lowest_hashes(&self) -> Range<u64> {
        self.total() - verity::lowest_level(self.file_system() / BLOCK)..self.total()
    }

    /// The offsets, in the image, of the hashes of some blocks of the lowest level. `blocks` are offsets too. `None`:
    /// the level has one block, and its hash is the root.
    pub fn hashes_of_hash_blocks(&self, blocks: &Range<u64>) -> Option<Range<u64>> {
        let lowest = self.lowest_hashes();
        let count = (lowest.end - lowest.start) / BLOCK;
        let level = lowest.start - verity::lowest_level(count)..lowest.start;
        let within = (blocks.start - lowest.start) / BLOCK..(blocks.end - lowest.start) / BLOCK;
        (count > 1).then(|| hashes_in(&level, within))
    }

    /// The offsets, in the image, of the beginning of the hash tree that [`check_front`](super::check_front) needs: the
    /// header, the levels above the lowest one, and the hashes of the metadata.
    pub fn front_hashes(&self) -> Range<u64> {
        self.file_system()..self.hash_blocks_of(0..self.metadata).end
    }
}

/// The offsets of the hashes of some blocks in the level that has them.
fn hashes_in(level: &Range<u64>, blocks: Range<u64>) -> Range<u64> {
    let hash = verity::HASH as u64;
    level.start + blocks.start * hash..level.start + blocks.end * hash
}

/// Where a file's data is.
pub(super) struct Extent {
    pub(super) id: Id,
    /// The offset of its first block.
    pub(super) offset: u64,
    /// Bytes of its blocks.
    pub(super) stored: u64,
    /// Zeros at the end of its last block.
    pub(super) padding: u64,
}

impl Extent {
    /// Where the zeros are in the image.
    pub(super) fn padding_range(&self) -> Range<u64> {
        let end = self.offset + self.stored;
        end - self.padding..end
    }
}

/// A native image without its data. The order of the nodes is the order of their inodes.
pub(super) struct NativeImage {
    tree: Tree,
    uuid: [u8; 16],
    /// Blocks of the metadata.
    metadata: u64,
    /// Blocks of the file system.
    end: u64,
}

impl NativeImage {
    /// Gives each file's data its place: that of the files in `first` in this order, then that of the others in the
    /// order of their inodes. The tree's nodes must be in the order of a walk, see [`in_order`].
    pub(super) fn new(mut tree: Tree, uuid: [u8; 16], first: &[Id]) -> io::Result<Self> {
        let metadata = metadata_blocks(&tree)?;
        let mut end = metadata;
        let mut has_place = vec![false; tree.len()];
        for id in first.iter().copied().chain(0..tree.len() as Id) {
            let Content::File { block, size, chunks } = &mut tree.node_mut(id).content else { continue };
            if !std::mem::replace(&mut has_place[id as usize], true) {
                // An empty file has no block.
                *block = if *size == 0 { 0 } else { u32::try_from(end).map_err(|_| io::ErrorKind::FileTooLarge)? };
                end = end.saturating_add(compressed::stored_blocks(*size, chunks));
            }
        }
        u32::try_from(end).map_err(|_| io::ErrorKind::FileTooLarge)?;
        Ok(Self { tree, uuid, metadata, end })
    }

    /// The image of a tree that was read, with the data of each file at the place that the tree has for it.
    ///
    /// # Errors
    /// There is a gap between the data of two files, or two files share a block.
    pub(super) fn with_places(tree: Tree, uuid: [u8; 16]) -> Result<Self, Problem> {
        let metadata = metadata_blocks(&tree).map_err(|error| error.to_string())?;
        let mut image = Self { tree, uuid, metadata, end: metadata };
        for Extent { offset, stored, .. } in image.extents() {
            if offset != image.end.saturating_mul(BLOCK) {
                return Err("the data of its files is not in one piece".into());
            }
            image.end = image.end.saturating_add(stored / BLOCK);
        }
        u32::try_from(image.end).map_err(|_| "it has too many blocks")?;
        Ok(image)
    }

    pub(super) fn tree(&self) -> &Tree {
        &self.tree
    }

    /// All files, in the order of their inodes.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &Node> {
        (0..self.tree.len() as Id).map(|id| self.tree.node(id))
    }

    pub(super) fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// Where each file's data is, in the order of the offsets. Empty files are left out.
    pub(super) fn extents(&self) -> Vec<Extent> {
        let extent = |id: Id| match &self.tree.node(id).content {
            Content::File { block, size, chunks } if *size > 0 => {
                let offset = u64::from(*block) * BLOCK;
                let stored = compressed::stored_blocks(*size, chunks).saturating_mul(BLOCK);
                let padding = compressed::padding(*size, chunks);
                Some(Extent { id, offset, stored, padding })
            }
            _ => None,
        };
        let mut extents: Vec<_> = (0..self.tree.len() as Id).filter_map(extent).collect();
        extents.sort_by_key(|extent| extent.offset);
        extents
    }

    pub(super) fn parts(&self) -> Parts {
        let data = (self.end - self.metadata) * BLOCK;
        Parts { metadata: self.metadata * BLOCK, data, hash_tree: verity::size(self.end) }
    }

    /// Writes the metadata.
    pub(super) fn write_metadata(&self, out: &mut impl Write) -> io::Result<()> {
        let layout = Layout::of(&self.tree, START)?;
        out.write_all(&layout.super_block(self.uuid, self.end))?;
        layout.write(out)
    }
}

/// Blocks of the metadata of a tree.
fn metadata_blocks(tree: &Tree) -> io::Result<u64> {
    let metadata = Layout::of(tree, START)?.end;
    if metadata * BLOCK > MAX_METADATA {
        let problem = format!("names and attributes of more than {MAX_METADATA} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, problem));
    }
    Ok(metadata)
}

/// A copy of a tree whose nodes are in the order of a walk: a directory before what it contains, names in the order of
/// their bytes, a file with several names at its first one. Also returns the number that each node had.
pub(super) fn in_order(from: &Tree) -> io::Result<(Tree, Vec<Id>)> {
    let copy = |id: Id| {
        let node = from.node(id);
        let content = match &node.content {
            Content::Dir(_) => Content::Dir(BTreeMap::new()),
            content => content.clone(),
        };
        let mut xattrs = node.xattrs.clone();
        xattrs.sort_unstable();
        Node { content, xattrs, names: 0, ..*node }
    };
    let mut to = Tree::new(copy(ROOT));
    let mut before = vec![ROOT];
    // The new numbers of files with several names.
    let mut known: HashMap<Id, Id> = HashMap::new();
    let mut waiting: Vec<(Id, Id, &[u8])> = Vec::new();
    let wait_for = |waiting: &mut Vec<_>, id: Id, parent: Id| {
        if let Content::Dir(names) = &from.node(id).content {
            waiting.extend(names.iter().rev().map(|(name, child)| (*child, parent, &name[..])));
        }
    };
    wait_for(&mut waiting, ROOT, ROOT);
    while let Some((id, parent, name)) = waiting.pop() {
        if let Some(new) = known.get(&id) {
            to.name(parent, name, *new);
            continue;
        }
        let new = to.add(parent, name, copy(id))?;
        before.push(id);
        if from.node(id).names > 1 {
            known.insert(id, new);
        }
        wait_for(&mut waiting, id, new);
    }
    Ok((to, before))
}
