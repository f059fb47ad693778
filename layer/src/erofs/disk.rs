//! A tree → an EROFS file system (Documentation/filesystems/erofs.rst and `erofs_fs.h` of Linux).
//!
//! The file has three parts:
//! 1. the data of regular files, as it arrived; each file begins at a block of its own
//! 2. an inode of 64 bytes for each file, followed by its extended attributes and by the end of a directory's or link's
//!    content, if that fits the same block, or by the index of compressed data
//! 3. the other blocks of directories and links
//!
//! All offsets of the second and third part are computed before their first byte is written.

use std::{
    collections::BTreeMap,
    io::{self, Seek, SeekFrom, Write},
    ops::Range,
};

use rustix::fs::FileType;

use super::{
    compressed,
    format::{
        BLOCK, COMPRESSED, DIRENT, FIRST, INLINE, INODE, MAGIC, PLAIN, PREFIXES, SLOT, SUPER, SUPER_BYTES,
        XATTR_HEADER, blocks,
    },
    tree::{Content, Id, ROOT, Tree},
};
use crate::{digest::Digest, tar::Xattrs};

/// The longest end that follows an inode: it must not reach into another block.
const MAX_TAIL: u64 = BLOCK / 2;
/// Times are those of modification (`EROFS_FEATURE_COMPAT_MTIME`).
const HAS_MTIME: u32 = 2;
/// The most that extended attributes of one file take: their size is counted in words, with 16 bits.
const MAX_XATTRS: usize = XATTR_HEADER + 4 * (u16::MAX as usize - 1);

/// The UUID of a file system that holds the layer with this digest.
pub fn uuid(diff_id: &Digest) -> [u8; 16] {
    let mut uuid = [0; 16];
    // A digest has enough digits, and they are hexadecimal.
    hex::decode_to_slice(&diff_id.hex()[..32], &mut uuid).unwrap_or_default();
    uuid
}

/// Bytes that extended attributes take behind an inode; `None` if they do not fit.
pub(super) fn xattr_bytes(xattrs: &Xattrs) -> Option<usize> {
    let mut bytes = XATTR_HEADER;
    for (key, value) in xattrs {
        let (_, rest) = prefix(key)?;
        let fits = rest.len() <= u8::MAX.into() && value.len() <= u16::MAX.into();
        bytes += fits.then(|| xattr_entry(rest, value))?;
    }
    match xattrs.len() {
        0 => Some(0),
        _ => (bytes <= MAX_XATTRS).then_some(bytes),
    }
}

fn xattr_entry(rest: &[u8], value: &[u8]) -> usize {
    (4 + rest.len() + value.len()).next_multiple_of(4)
}

/// The number of a name's prefix, and the rest of the name.
fn prefix(key: &[u8]) -> Option<(u8, &[u8])> {
    PREFIXES.iter().find_map(|(prefix, index)| Some((*index, key.strip_prefix(*prefix)?)))
}

/// Writes everything but the data, whose blocks end at `start`.
pub(super) fn write(file: &mut (impl Write + Seek), tree: &Tree, start: u64, uuid: [u8; 16]) -> io::Result<()> {
    let layout = Layout::of(tree, start)?;
    file.seek(SeekFrom::Start(start * BLOCK))?;
    layout.write(file)?;
    file.seek(SeekFrom::Start(0))?;
    file.write_all(&layout.super_block(uuid, layout.end))
}

/// Writes zeros and returns how many.
pub(super) fn pad(file: &mut impl Write, bytes: u64) -> io::Result<u64> {
    io::copy(&mut io::Read::take(io::repeat(0), bytes), file)
}

/// The content of a directory or link, which lies with the metadata.
#[derive(Clone, Copy)]
struct Body {
    size: u64,
    /// Blocks of its own.
    blocks: u64,
    /// Bytes behind the inode.
    tail: u64,
}

impl Body {
    fn of(size: u64) -> Self {
        let tail = size % BLOCK;
        if tail <= MAX_TAIL {
            Self { size, blocks: size / BLOCK, tail }
        } else {
            Self { size, blocks: blocks(size), tail: 0 }
        }
    }
}

/// The offsets of a file's inode and content.
struct Location {
    id: Id,
    parent: Id,
    /// Of the inode, from the beginning of the metadata, in bytes.
    offset: u64,
    /// The first block of the body, if it has one.
    block: u64,
    body: Body,
    /// Links to a directory: its own, its parent's, and one of each directory in it.
    links: u32,
}

/// The offsets of everything but the data.
pub(super) struct Layout<'a> {
    tree: &'a Tree,
    /// In the order in which inodes are written; each once, however many names it has.
    order: Vec<Location>,
    /// By [`Id`].
    numbers: Vec<u64>,
    /// The first block of the metadata, and of the bodies in it.
    start: u64,
    bodies: u64,
    /// The first block behind the bodies.
    pub(super) end: u64,
    /// Whether a file is compressed.
    compressed: bool,
}

impl<'a> Layout<'a> {
    /// The layout of a tree whose metadata begins at the block `start`.
    pub(super) fn of(tree: &'a Tree, start: u64) -> io::Result<Self> {
        let mut layout = Layout {
            tree,
            order: Vec::new(),
            numbers: vec![0; tree.len()],
            start,
            bodies: start,
            end: start,
            compressed: false,
        };
        let (mut at, mut body_blocks) = (FIRST, 0);
        let mut waiting = vec![(ROOT, ROOT)];
        while let Some((id, parent)) = waiting.pop() {
            let node = tree.node(id);
            if layout.numbers[id as usize] != 0 {
                continue;
            }
            let (size, mut links) = match &node.content {
                Content::Dir(names) => {
                    // Popped in the order of their names.
                    waiting.extend(names.values().rev().map(|child| (*child, id)));
                    (dir_size(names), 2)
                }
                Content::Symlink(target) => (target.len() as u64, node.names),
                _ => (0, node.names),
            };
            if let Content::Dir(names) = &node.content {
                links += names.values().filter(|child| tree.is_dir(**child)).count() as u32;
            }
            let body = Body::of(size);
            let head = INODE + xattr_bytes(&node.xattrs).ok_or(io::ErrorKind::InvalidInput)? as u64;
            while (at + head) % BLOCK + body.tail > BLOCK {
                at += SLOT;
            }
            layout.numbers[id as usize] = at / SLOT;
            layout.order.push(Location { id, parent, offset: at, block: body_blocks, body, links });
            let index = index_size(&node.content, at + head);
            layout.compressed |= index > 0;
            at = (at + head + body.tail + index).next_multiple_of(SLOT);
            body_blocks += body.blocks;
        }
        layout.bodies = start + blocks(at);
        layout.end = layout.bodies + body_blocks;
        u32::try_from(layout.end).map_err(|_| io::ErrorKind::FileTooLarge)?;
        Ok(layout)
    }

    /// Writes the inodes, and the blocks of directories and links.
    pub(super) fn write(&self, file: &mut impl Write) -> io::Result<()> {
        let mut at = 0;
        for location in &self.order {
            at += pad(file, location.offset - at)?;
            at += self.write_inode(file, location)?;
        }
        pad(file, (self.bodies - self.start) * BLOCK - at)?;
        for location in self.order.iter().filter(|location| location.body.blocks > 0) {
            let content = self.content(location);
            let whole = content.len().min(location.body.blocks as usize * BLOCK as usize);
            file.write_all(&content[..whole])?;
            pad(file, location.body.blocks * BLOCK - whole as u64)?;
        }
        Ok(())
    }

    /// The content of a directory or link.
    fn content(&self, location: &Location) -> Vec<u8> {
        match &self.tree.node(location.id).content {
            Content::Dir(names) => {
                let number = |id: Id| self.numbers[id as usize];
                let mut entries: Vec<(&[u8], u64, u8)> = vec![
                    (b".", number(location.id), file_type(&self.tree.node(location.id).content)),
                    (b"..", number(location.parent), file_type(&self.tree.node(location.parent).content)),
                ];
                let kind = |id: Id| file_type(&self.tree.node(id).content);
                entries.extend(names.iter().map(|(name, id)| (&name[..], number(*id), kind(*id))));
                entries.sort_unstable();
                dir_content(&entries)
            }
            Content::Symlink(target) => target.to_vec(),
            _ => Vec::new(),
        }
    }

    /// Writes the inode and everything that follows it. Returns the number of bytes.
    fn write_inode(&self, file: &mut impl Write, location: &Location) -> io::Result<u64> {
        let node = self.tree.node(location.id);
        let body_block = (self.bodies + location.block) as u32;
        let (kind, size, pointer) = match &node.content {
            Content::Dir(_) => (FileType::Directory, location.body.size, body_block),
            Content::Symlink(_) => (FileType::Symlink, location.body.size, body_block),
            Content::File { block, size, chunks } if chunks.is_empty() => (FileType::RegularFile, *size, *block),
            Content::File { size, chunks, .. } => {
                (FileType::RegularFile, *size, compressed::stored_blocks(*size, chunks) as u32)
            }
            Content::CharDevice(number) => (FileType::CharacterDevice, 0, *number),
            Content::BlockDevice(number) => (FileType::BlockDevice, 0, *number),
            Content::Fifo => (FileType::Fifo, 0, 0),
        };
        let xattrs = xattrs(&node.xattrs);
        let end = location.offset + INODE + xattrs.len() as u64;
        let index = match &node.content {
            Content::File { block, size, chunks } if !chunks.is_empty() => {
                compressed::index(end, *block, *size, chunks)
            }
            _ => Vec::new(),
        };
        let format = match location.body.tail {
            _ if !index.is_empty() => COMPRESSED,
            0 => PLAIN,
            _ => INLINE,
        };
        let mut bytes = Vec::with_capacity(INODE as usize + xattrs.len() + location.body.tail as usize + index.len());
        bytes.extend(format.to_le_bytes());
        bytes.extend(xattr_words(xattrs.len()).to_le_bytes());
        bytes.extend(((kind.as_raw_mode() | node.mode & 0o7777) as u16).to_le_bytes());
        bytes.extend([0; 2]);
        bytes.extend(size.to_le_bytes());
        bytes.extend(pointer.to_le_bytes());
        // Only 32-bit programs see this number.
        bytes.extend((location.id + 1).to_le_bytes());
        bytes.extend(node.uid.to_le_bytes());
        bytes.extend(node.gid.to_le_bytes());
        bytes.extend(node.mtime.0.to_le_bytes());
        bytes.extend(node.mtime.1.to_le_bytes());
        bytes.extend(location.links.to_le_bytes());
        bytes.extend([0; 16]);
        bytes.extend(xattrs);
        bytes.extend(index);
        if location.body.tail > 0 {
            let content = self.content(location);
            bytes.extend_from_slice(&content[(location.body.blocks * BLOCK) as usize..]);
        }
        file.write_all(&bytes)?;
        Ok(bytes.len() as u64)
    }

    /// The first block of an image with so many blocks.
    pub(super) fn super_block(&self, uuid: [u8; 16], blocks: u64) -> Vec<u8> {
        let mut bytes = vec![0; SUPER];
        bytes.extend(MAGIC.to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(HAS_MTIME.to_le_bytes());
        bytes.extend([BLOCK.trailing_zeros() as u8, 0]);
        bytes.extend(((FIRST / SLOT) as u16).to_le_bytes());
        bytes.extend((self.order.len() as u64).to_le_bytes());
        bytes.extend([0; 12]);
        bytes.extend((blocks as u32).to_le_bytes());
        bytes.extend((self.start as u32).to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(uuid);
        bytes.resize(SUPER + SUPER_BYTES, 0);
        if self.compressed {
            compressed::announce(&mut bytes);
        }
        bytes.resize(BLOCK as usize, 0);
        bytes
    }
}

/// Bytes of the index behind an inode that ends at this offset.
fn index_size(content: &Content, end: u64) -> u64 {
    match content {
        Content::File { size, chunks, .. } if !chunks.is_empty() => compressed::index_size(end, *size),
        _ => 0,
    }
}

/// Extended attributes as they follow an inode; empty if there are none.
fn xattrs(xattrs: &Xattrs) -> Vec<u8> {
    if xattrs.is_empty() {
        return Vec::new();
    }
    let mut bytes = vec![0; XATTR_HEADER];
    for (key, value) in xattrs {
        // The layout checked that each one has a number and fits.
        let Some((index, rest)) = prefix(key) else { continue };
        bytes.extend([rest.len() as u8, index]);
        bytes.extend((value.len() as u16).to_le_bytes());
        bytes.extend_from_slice(rest);
        bytes.extend_from_slice(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    bytes
}

/// `i_xattr_icount`: words behind the header, and one for the header.
fn xattr_words(bytes: usize) -> u16 {
    if bytes == 0 { 0 } else { ((bytes - XATTR_HEADER) / 4 + 1) as u16 }
}

/// `FT_*` of linux/fs_types.h.
fn file_type(content: &Content) -> u8 {
    match content {
        Content::File { .. } => 1,
        Content::Dir(_) => 2,
        Content::CharDevice(_) => 3,
        Content::BlockDevice(_) => 4,
        Content::Fifo => 5,
        Content::Symlink(_) => 7,
    }
}

/// Distributes a directory's entries to blocks, by the lengths of their names. Returns the directory's size too.
fn pack(lengths: impl Iterator<Item = usize>) -> (Vec<Range<usize>>, u64) {
    let (mut ranges, mut from, mut used, mut count) = (Vec::new(), 0, 0, 0);
    for (number, length) in lengths.enumerate() {
        if used + DIRENT + length > BLOCK as usize {
            ranges.push(from..number);
            (from, used) = (number, 0);
        }
        used += DIRENT + length;
        count = number + 1;
    }
    ranges.push(from..count);
    let size = (ranges.len() as u64 - 1) * BLOCK + used as u64;
    (ranges, size)
}

/// Bytes of a directory with these names, its own and its parent's among them.
fn dir_size(names: &BTreeMap<Box<[u8]>, Id>) -> u64 {
    let mut all: Vec<&[u8]> = names.keys().map(|name| &name[..]).chain([&b"."[..], b".."]).collect();
    all.sort_unstable();
    pack(all.iter().map(|name| name.len())).1
}

/// A directory's blocks, each with its entries and then their names; the last one ends with the last name.
fn dir_content(entries: &[(&[u8], u64, u8)]) -> Vec<u8> {
    let (ranges, size) = pack(entries.iter().map(|(name, ..)| name.len()));
    let mut bytes = Vec::with_capacity(size as usize);
    for range in ranges {
        bytes.resize(bytes.len().next_multiple_of(BLOCK as usize), 0);
        let mut name_at = DIRENT * range.len();
        for (name, number, kind) in &entries[range.clone()] {
            bytes.extend(number.to_le_bytes());
            bytes.extend((name_at as u16).to_le_bytes());
            bytes.extend([*kind, 0]);
            name_at += name.len();
        }
        entries[range].iter().for_each(|(name, ..)| bytes.extend_from_slice(name));
    }
    bytes
}
