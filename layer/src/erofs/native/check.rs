//! Tells whether a native image is one that this crate could have written.
//!
//! The kernel parses a file system that it mounts, so an image from a registry must not be a hostile file system. Its
//! metadata is parsed here, with bounds and without recursion. The resulting tree is checked by the rules for entries
//! of archives and is written again: the same bytes must come out. So the kernel reads only what this crate wrote, or
//! would have written.

use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    io::{self, Write},
    ops::Range,
    os::unix::fs::FileExt,
    rc::Rc,
};

use rustix::fs::FileType;

use super::{
    super::{
        compressed,
        format::{BLOCK, COMPRESSED, DIRENT, FIRST, INLINE, INODE, SLOT, SUPER, XATTR_HEADER, u16_at, u32_at, u64_at},
        read,
        tree::{Content, Id, Node, ROOT, Tree},
    },
    image::{MAX_METADATA, NativeImage, Parts},
    rules, verity,
};
use crate::{
    apply::{MAX_DEPTH, MAX_PATH},
    digest::Digest,
    error::{Problem, UnpackError},
    limits::Limits,
    path,
    unpack::Unpacked,
};

/// Why a hash tree is refused.
pub(super) const TREE_REFUSED: &str = "its hash tree has another form or another root";

/// What a native image says about its layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedImage {
    /// The parts of the file.
    pub parts: Parts,
    /// The files of the layer; one with several names counts once.
    pub files: u64,
    /// Sorted paths of directories that the layer uses without describing them.
    pub implied_directories: Vec<Vec<u8>>,
    /// The layer hides everything below it.
    pub opaque_root: bool,
    /// Parts of the file behind the ends of files, which must be zeros. The metadata does not tell whether they are.
    pub padding: Vec<Range<u64>>,
}

impl CheckedImage {
    /// The image as a layer. Its digest is its diff id.
    pub fn into_layer(self, digest: Digest) -> Unpacked {
        let bytes = self.parts.total();
        Unpacked {
            diff_id: digest.clone(),
            blob: digest,
            blob_bytes: bytes,
            bytes,
            entries: self.files,
            implied_directories: self.implied_directories,
            opaque_root: self.opaque_root,
            copy_only: false,
            is_image: true,
        }
    }
}

/// Checks a whole image, whose metadata has the given number of bytes and whose hash tree has the given root.
///
/// The hash tree is not compared with the data. The digest of a whole file proves both. The chunks of a partial layer
/// are compared when they arrive.
///
/// # Errors
/// The image is refused, or the file cannot be read.
pub fn check_image(file: &File, metadata: u64, root: &[u8; 32], limits: &Limits) -> Result<CheckedImage, UnpackError> {
    let failed = |error| UnpackError::disk("reading the native image", error);
    let length = file.metadata().map_err(failed)?.len();
    if metadata > length || metadata > MAX_METADATA {
        return Err(refuse("its metadata is too large"));
    }
    let mut bytes = vec![0; metadata as usize];
    file.read_exact_at(&mut bytes, 0).map_err(failed)?;
    let (image, checked) = check_all(&bytes, limits).map_err(refuse)?;
    drop(bytes);
    let parts = checked.parts;
    check_length(&parts, length)?;
    let mut tree = vec![0; (parts.total() - parts.file_system()) as usize];
    file.read_exact_at(&mut tree, parts.file_system()).map_err(failed)?;
    if !verity::is_tree(&tree, parts.file_system() / BLOCK, image.uuid(), root) {
        return Err(refuse(TREE_REFUSED));
    }
    check_padding(file, &checked.padding)?;
    Ok(checked)
}

/// Checks the length of a whole image.
pub(super) fn check_length(parts: &Parts, length: u64) -> Result<(), UnpackError> {
    if length == parts.total() { Ok(()) } else { Err(refuse("its length is not that of its files")) }
}

/// The image as a whole is refused.
pub(super) fn refuse(problem: impl Into<Problem>) -> UnpackError {
    UnpackError::refused(b"", problem)
}

/// Checks the metadata of an image. `bytes` are all of it.
///
/// # Errors
/// The reason why this crate cannot have written these bytes.
pub fn check_metadata(bytes: &[u8], limits: &Limits) -> Result<CheckedImage, Problem> {
    check_all(bytes, limits).map(|(_, checked)| checked)
}

/// The image, and what it says.
pub(super) fn check_all(bytes: &[u8], limits: &Limits) -> Result<(NativeImage, CheckedImage), Problem> {
    let uuid = *bytes.get(SUPER + 48..).and_then(|rest| rest.first_chunk()).ok_or("it is too short")?;
    let Walk { tree, implied, .. } = Walk::new(bytes, limits).all()?;
    for id in 0..tree.len() {
        rules::check_node(tree.node(id as Id), limits)?;
    }
    let opaque_root = rules::has_mark(tree.node(ROOT), rules::opaque());
    let image = NativeImage::with_places(tree, uuid)?;
    let parts = image.parts();
    if parts.metadata != bytes.len() as u64 {
        return Err("its metadata has another length".into());
    }
    image.write_metadata(&mut Expected(bytes)).map_err(|_| "its metadata has another form")?;
    let mut implied_directories = implied;
    implied_directories.sort_unstable();
    let files = image.nodes().count() as u64;
    let extents = image.extents().into_iter();
    let padding = extents.filter(|extent| extent.padding > 0).map(|extent| extent.padding_range()).collect();
    Ok((image, CheckedImage { parts, files, implied_directories, opaque_root, padding }))
}

/// The bytes that must be written.
struct Expected<'a>(&'a [u8]);

impl Write for Expected<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.strip_prefix(bytes).ok_or(io::ErrorKind::InvalidData)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Checks that zeros follow the data of each file, see [`CheckedImage::padding`]. A process that maps the file reads
/// them. Behind compressed data, the kernel shows its own zeros.
///
/// # Errors
/// The image is refused, or the file cannot be read.
pub fn check_padding(file: &File, padding: &[Range<u64>]) -> Result<(), UnpackError> {
    let mut bytes = [0; BLOCK as usize];
    for Range { start, end } in padding {
        let bytes = &mut bytes[..(end - start) as usize];
        file.read_exact_at(bytes, *start).map_err(|error| UnpackError::disk("reading the native image", error))?;
        check_zeros(bytes)?;
    }
    Ok(())
}

/// The same for an image that arrives from its beginning to its end.
pub(super) struct PaddingCheck {
    /// The last one first.
    left: Vec<Range<u64>>,
}

impl PaddingCheck {
    pub(super) fn new(mut padding: Vec<Range<u64>>) -> Self {
        padding.reverse();
        Self { left: padding }
    }

    /// Checks the bytes at this offset, which follow the bytes before.
    pub(super) fn update(&mut self, offset: u64, bytes: &[u8]) -> Result<(), UnpackError> {
        let end = offset + bytes.len() as u64;
        while let Some(range) = self.left.last().filter(|range| range.start < end) {
            let here = range.start.max(offset)..range.end.min(end);
            if !here.is_empty() {
                check_zeros(&bytes[(here.start - offset) as usize..(here.end - offset) as usize])?;
            }
            if range.end > end {
                break;
            }
            self.left.pop();
        }
        Ok(())
    }
}

fn check_zeros(bytes: &[u8]) -> Result<(), UnpackError> {
    match bytes.iter().all(|byte| *byte == 0) {
        true => Ok(()),
        false => Err(refuse("bytes behind the end of a file")),
    }
}

/// A name whose file was not visited yet.
struct Waiting<'a> {
    /// The number of its inode.
    number: u64,
    parent: Id,
    name: &'a [u8],
    /// Of the parent.
    depth: usize,
    /// Of the parent.
    path: Rc<Vec<u8>>,
}

/// A walk through the metadata, in the order in which it was written. No byte of an inode or of a directory is read
/// twice, so its time is bounded by the length of the metadata.
struct Walk<'a> {
    bytes: &'a [u8],
    limits: &'a Limits,
    tree: Tree,
    /// By the number of the inode.
    seen: HashMap<u64, Id>,
    /// Before this offset no further inode begins …
    next_inode: u64,
    /// … and no further block of a directory or link.
    next_body: u64,
    /// Names so far.
    names: u64,
    /// Bytes of all files so far.
    data: u64,
    waiting: Vec<Waiting<'a>>,
    implied: Vec<Vec<u8>>,
    implied_bytes: usize,
}

/// A file, and where its names are if it is a directory.
struct Found<'a> {
    node: Node,
    entries: Vec<(&'a [u8], u64)>,
}

impl<'a> Walk<'a> {
    fn new(bytes: &'a [u8], limits: &'a Limits) -> Self {
        let tree = Tree::new(Node::implied_dir());
        Self {
            bytes,
            limits,
            tree,
            seen: HashMap::new(),
            next_inode: BLOCK + FIRST,
            next_body: BLOCK,
            names: 0,
            data: 0,
            waiting: Vec::new(),
            implied: Vec::new(),
            implied_bytes: 0,
        }
    }

    fn all(mut self) -> Result<Self, Problem> {
        let root = FIRST / SLOT;
        let Found { node, entries } = self.inode(root)?;
        if !node.is_dir() {
            return Err("its root is no directory".into());
        }
        *self.tree.node_mut(ROOT) = node;
        self.seen.insert(root, ROOT);
        self.wait_for(ROOT, 0, Vec::new(), entries)?;
        while let Some(next) = self.waiting.pop() {
            self.visit(next)?;
        }
        Ok(self)
    }

    fn visit(&mut self, next: Waiting<'a>) -> Result<(), Problem> {
        if let Some(id) = self.seen.get(&next.number) {
            if self.tree.is_dir(*id) {
                return Err("a directory with several names".into());
            }
            self.tree.name(next.parent, next.name, *id);
            return Ok(());
        }
        let Found { node, entries } = self.inode(next.number)?;
        let is_dir = node.is_dir();
        let id = self.tree.add(next.parent, next.name, node).map_err(|error| error.to_string())?;
        self.seen.insert(next.number, id);
        if is_dir {
            self.wait_for(id, next.depth + 1, path::join(&next.path, next.name), entries)?;
        }
        Ok(())
    }

    /// Notes the names in a directory, to be visited in their order.
    fn wait_for(&mut self, id: Id, depth: usize, path: Vec<u8>, entries: Vec<(&'a [u8], u64)>) -> Result<(), Problem> {
        if rules::has_mark(self.tree.node(id), rules::IMPLIED) {
            self.implied_bytes += path.len();
            if self.implied_bytes > self.limits.kept_bytes {
                return Err("too many directories without a description".into());
            }
            self.implied.push(path.clone());
        }
        if entries.len() > 2 && (depth > MAX_DEPTH || path.len() > MAX_PATH) {
            return Err("directories too deep".into());
        }
        let path = Rc::new(path);
        let mut last: &[u8] = b"";
        let before = self.waiting.len();
        for (name, number) in entries {
            if name <= last {
                return Err("names out of order".into());
            }
            last = name;
            // The image is written again, so it does not matter here where these two lead.
            if name == b"." || name == b".." {
                continue;
            }
            rules::check_name(name)?;
            self.names += 1;
            if self.names > self.limits.entries {
                return Err(format!("the layer has more than {} entries", self.limits.entries));
            }
            self.waiting.push(Waiting { number, parent: id, name, depth, path: Rc::clone(&path) });
        }
        self.waiting[before..].reverse();
        Ok(())
    }

    /// Reads an inode that was not read before.
    fn inode(&mut self, number: u64) -> Result<Found<'a>, Problem> {
        let offset = number.checked_mul(SLOT).and_then(|bytes| bytes.checked_add(BLOCK));
        let offset = offset.filter(|offset| *offset >= self.next_inode).ok_or("inodes out of order")?;
        let inode = self.slice(offset, INODE)?;
        let (format, words) = (u16_at(inode, 0), usize::from(u16_at(inode, 2)));
        let xattr_bytes = if words == 0 { 0 } else { XATTR_HEADER + 4 * (words - 1) } as u64;
        let xattrs = read::xattrs(self.slice(offset + INODE, xattr_bytes)?).map_err(|error| error.to_string())?;
        let (size, pointer) = (u64_at(inode, 8), u32_at(inode, 16));
        let tail = if format == INLINE { size % BLOCK } else { 0 };
        let end = offset + INODE + xattr_bytes;
        let mode = u32::from(u16_at(inode, 4));
        let kind = FileType::from_raw_mode(mode);
        let (block, chunks) = match (kind, format) {
            (FileType::RegularFile, COMPRESSED) => self.chunks(end, size)?,
            _ => (if size == 0 { 0 } else { pointer }, Box::default()),
        };
        let index = if chunks.is_empty() { 0 } else { compressed::index_size(end, size) };
        self.next_inode = (end + tail + index).next_multiple_of(SLOT);
        let mut entries = Vec::new();
        let content = match kind {
            FileType::Directory => {
                for block in self.body(size, pointer, end, tail)? {
                    dirents(block, &mut entries)?;
                }
                Content::Dir(BTreeMap::new())
            }
            FileType::Symlink => Content::Symlink(self.body(size, pointer, end, tail)?.concat().into_boxed_slice()),
            FileType::RegularFile => {
                self.data = self.data.saturating_add(size);
                if self.data > self.limits.layer_bytes {
                    return Err(format!("files of more than {} bytes", self.limits.layer_bytes));
                }
                Content::File { block, size, chunks }
            }
            FileType::CharacterDevice => Content::CharDevice(pointer),
            FileType::BlockDevice => Content::BlockDevice(pointer),
            FileType::Fifo => Content::Fifo,
            _ => return Err("a file of a kind that layers do not have".into()),
        };
        let node = Node {
            content,
            mode: mode & 0o7777,
            uid: u32_at(inode, 24),
            gid: u32_at(inode, 28),
            mtime: (u64_at(inode, 32).cast_signed(), u32_at(inode, 40)),
            xattrs,
            names: 0,
        };
        Ok(Found { node, entries })
    }

    /// Reads where the data of a compressed file begins, and how many blocks each of its chunks takes. The inode ends
    /// at the offset `end`.
    fn chunks(&self, end: u64, size: u64) -> Result<(u32, Box<[u8]>), Problem> {
        if !self.limits.zstd_images {
            return Err("its files are compressed, and the kernel of this node does not read that (Linux 6.10 with \
                        CONFIG_EROFS_FS_ZIP_ZSTD)"
                .into());
        }
        if size > self.limits.layer_bytes {
            return Err(format!("files of more than {} bytes", self.limits.layer_bytes));
        }
        let index = self.slice(end, compressed::index_size(end, size))?;
        Ok(compressed::chunks_of(end, size, index).ok_or("an index that no compressed file has")?)
    }

    /// The content of a directory or link, in blocks.
    fn body(&mut self, size: u64, pointer: u32, end: u64, tail: u64) -> Result<Vec<&'a [u8]>, Problem> {
        let whole = size.checked_sub(tail).ok_or("a size that does not exist")?;
        let mut blocks = Vec::new();
        if whole > 0 {
            let from = u64::from(pointer) * BLOCK;
            if from < self.next_body {
                return Err("directories out of order".into());
            }
            let front = self.slice(from, whole)?;
            self.next_body = from + whole.next_multiple_of(BLOCK);
            blocks.extend(front.chunks(BLOCK as usize));
        }
        if tail > 0 {
            blocks.push(self.slice(end, tail)?);
        }
        Ok(blocks)
    }

    fn slice(&self, offset: u64, length: u64) -> Result<&'a [u8], Problem> {
        let from = usize::try_from(offset).ok();
        let to = offset.checked_add(length).and_then(|to| usize::try_from(to).ok());
        let range = from.zip(to).map(|(from, to)| from..to);
        Ok(range.and_then(|range| self.bytes.get(range)).ok_or("metadata outside its place")?)
    }
}

/// Adds the names in one block of a directory, with the numbers of their inodes.
fn dirents<'a>(block: &'a [u8], entries: &mut Vec<(&'a [u8], u64)>) -> Result<(), Problem> {
    let broken = || Problem::from("a directory that no file system has");
    let name_at = |at: usize| {
        let entry = block.get(at * DIRENT..(at + 1) * DIRENT)?;
        Some(usize::from(u16_at(entry, 8)))
    };
    let count = name_at(0).ok_or_else(broken)? / DIRENT;
    for at in 0..count {
        let from = name_at(at).ok_or_else(broken)?;
        let to = if at + 1 < count { name_at(at + 1).ok_or_else(broken)? } else { block.len() };
        let name = block.get(from..to).ok_or_else(broken)?;
        // The last name of a block may end before the block does.
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        entries.push((name, u64_at(&block[at * DIRENT..], 0)));
    }
    Ok(())
}
