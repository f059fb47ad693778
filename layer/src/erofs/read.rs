//! An EROFS image of a layer → its files, without a mount and without their data.
//!
//! Reads the images that this crate writes, see the module `disk`. A mount would show the same, but each one costs a
//! super block and a line in the kernel's log.

use std::{fs::File, io, os::unix::fs::FileExt};

use rustix::fs::FileType;

use super::format::{BLOCK, DIRENT, INLINE, INODE, MAGIC, PREFIXES, SLOT, SUPER, XATTR_HEADER, u16_at, u32_at, u64_at};
use crate::tar::Xattrs;

/// More than any directory of a layer has. A damaged image must not ask for more memory.
const MAX_DIRECTORY: u64 = 1 << 30;

/// An image of a layer.
#[derive(Debug)]
pub struct ImageReader {
    file: File,
    /// The offset of the metadata.
    metadata: u64,
    root: u64,
}

/// A file of an image: everything but its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageFile {
    /// All names of a file have the same number.
    pub number: u64,
    /// Type and permissions, as in `st_mode`.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Seconds and nanoseconds of the last modification.
    pub mtime: (i64, u32),
    /// Names and values of the extended attributes.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// The number of names. That of a directory counts the directories in it.
    pub links: u32,
    content: Content,
}

/// The size of a file's content, and where that of a directory or link lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Content {
    size: u64,
    /// The first block, or the number of a device in the kernel's form.
    pointer: u32,
    /// The offset of the end, if it follows the inode.
    tail: Option<u64>,
}

impl ImageFile {
    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        FileType::from_raw_mode(self.mode) == FileType::Directory
    }

    /// Bytes of the content.
    pub fn size(&self) -> u64 {
        self.content.size
    }

    /// The major and the minor number, if it is a device (`new_decode_dev` of Linux).
    pub fn device(&self) -> (u32, u32) {
        let device = self.content.pointer;
        ((device & 0xfff00) >> 8, device & 0xff | (device >> 12) & 0xfff00)
    }
}

impl ImageReader {
    /// Takes an image.
    ///
    /// # Errors
    /// It cannot be read, or it is not such an image.
    pub fn open(file: File) -> io::Result<Self> {
        let mut block = [0; 128];
        file.read_exact_at(&mut block, SUPER as u64)?;
        if u32_at(&block, 0) != MAGIC || u64::from(block[12]) != u64::from(BLOCK.trailing_zeros()) {
            return Err(damaged());
        }
        Ok(Self { file, root: u16_at(&block, 14).into(), metadata: u64::from(u32_at(&block, 40)) * BLOCK })
    }

    /// The layer's root.
    ///
    /// # Errors
    /// The image cannot be read or is damaged.
    pub fn root(&self) -> io::Result<ImageFile> {
        self.inode(self.root)
    }

    /// The file of this name in a directory.
    ///
    /// # Errors
    /// The image cannot be read or is damaged.
    pub fn child(&self, directory: &ImageFile, name: &[u8]) -> io::Result<Option<ImageFile>> {
        if !directory.is_dir() {
            return Ok(None);
        }
        for block in self.content(directory.content)?.chunks(BLOCK as usize) {
            if let Some(number) = find(block, name)? {
                return self.inode(number).map(Some);
            }
        }
        Ok(None)
    }

    /// The files of a directory with their names, in the order of the names.
    ///
    /// # Errors
    /// The image cannot be read or is damaged.
    pub fn files(&self, directory: &ImageFile) -> io::Result<Vec<(Vec<u8>, ImageFile)>> {
        let mut files = Vec::new();
        if directory.is_dir() {
            for block in self.content(directory.content)?.chunks(BLOCK as usize) {
                for entry in entries(block)? {
                    let (name, number) = entry?;
                    if name != b"." && name != b".." {
                        files.push((name.to_vec(), self.inode(number)?));
                    }
                }
            }
        }
        Ok(files)
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// The image cannot be read or is damaged.
    pub fn target(&self, link: &ImageFile) -> io::Result<Vec<u8>> {
        self.content(link.content)
    }

    fn inode(&self, number: u64) -> io::Result<ImageFile> {
        let offset = number.checked_mul(SLOT).and_then(|bytes| bytes.checked_add(self.metadata)).ok_or_else(damaged)?;
        let mut inode = [0; INODE as usize];
        self.file.read_exact_at(&mut inode, offset)?;
        let words = usize::from(u16_at(&inode, 2));
        let xattr_bytes = if words == 0 { 0 } else { XATTR_HEADER + 4 * (words - 1) };
        let mut bytes = vec![0; xattr_bytes];
        self.file.read_exact_at(&mut bytes, offset + INODE)?;
        let size = u64_at(&inode, 8);
        let tail = (u16_at(&inode, 0) == INLINE).then_some(offset + INODE + xattr_bytes as u64);
        Ok(ImageFile {
            number,
            mode: u16_at(&inode, 4).into(),
            uid: u32_at(&inode, 24),
            gid: u32_at(&inode, 28),
            mtime: (u64_at(&inode, 32).cast_signed(), u32_at(&inode, 40)),
            xattrs: xattrs(&bytes)?,
            links: u32_at(&inode, 44),
            content: Content { size, pointer: u32_at(&inode, 16), tail },
        })
    }

    fn content(&self, content: Content) -> io::Result<Vec<u8>> {
        let Content { size, pointer, tail } = content;
        if size > MAX_DIRECTORY {
            return Err(damaged());
        }
        let mut bytes = vec![0; size as usize];
        let whole = if tail.is_some() { size / BLOCK * BLOCK } else { size };
        let (front, end) = bytes.split_at_mut(whole as usize);
        self.file.read_exact_at(front, u64::from(pointer) * BLOCK)?;
        self.file.read_exact_at(end, tail.unwrap_or_default())?;
        Ok(bytes)
    }
}

/// The inode number of a name in one block of a directory.
fn find(block: &[u8], name: &[u8]) -> io::Result<Option<u64>> {
    for entry in entries(block)? {
        let (found, number) = entry?;
        if found == name {
            return Ok(Some(number));
        }
    }
    Ok(None)
}

/// The names in one block of a directory, with their inode numbers.
fn entries(block: &[u8]) -> io::Result<impl Iterator<Item = io::Result<(&[u8], u64)>>> {
    let name_offset = |at: usize| block.get(at * DIRENT..(at + 1) * DIRENT).map(|entry| usize::from(u16_at(entry, 8)));
    let count = name_offset(0).ok_or_else(damaged)? / DIRENT;
    Ok((0..count).map(move |at| {
        let from = name_offset(at).ok_or_else(damaged)?;
        let to = if at + 1 < count { name_offset(at + 1).ok_or_else(damaged)? } else { block.len() };
        let name = block.get(from..to).ok_or_else(damaged)?;
        // The last name of a block that is not the last one ends with zeros.
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        Ok((name, u64_at(&block[at * DIRENT..], 0)))
    }))
}

/// The extended attributes behind an inode.
pub(super) fn xattrs(bytes: &[u8]) -> io::Result<Xattrs> {
    let mut rest = bytes.get(XATTR_HEADER..).unwrap_or_default();
    let mut xattrs = Vec::new();
    while rest.len() >= 4 {
        let (name, value) = (usize::from(rest[0]), usize::from(u16_at(rest, 2)));
        let index = rest[1];
        let prefix = PREFIXES.iter().find(|(_, known)| *known == index).ok_or_else(damaged)?.0;
        let body = rest.get(4..4 + name + value).ok_or_else(damaged)?;
        xattrs.push(([prefix, &body[..name]].concat(), body[name..].to_vec()));
        rest = rest.get((4 + name + value).next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(xattrs)
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the layer's image is damaged")
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::{
        super::{
            disk,
            tree::{Content as TreeContent, Node, ROOT, Tree},
        },
        *,
    };

    fn image(tree: &Tree) -> ImageReader {
        let mut bytes = io::Cursor::new(Vec::new());
        disk::write(&mut bytes, tree, 1, [0; 16]).unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes.into_inner()).unwrap();
        ImageReader::open(file).unwrap()
    }

    #[test]
    fn what_was_written_is_read() {
        let xattrs = |name: &str, length| vec![(format!("user.{name}").into_bytes(), vec![b'v'; length])];
        let mut tree = Tree::new(Node { xattrs: xattrs("root", 0), mode: 0o1751, ..Node::implied_dir() });
        let dir = Node { mtime: (-5, 7), uid: 3_000_000, gid: 7, xattrs: xattrs("d", 3), ..Node::implied_dir() };
        let dir = tree.add(ROOT, b"d", dir).unwrap();
        // Several blocks, with an end behind the inode and without.
        for count in [1, 200, 280, 290, 1000] {
            let parent = tree.add(dir, format!("{count}").as_bytes(), tree.implied_dir()).unwrap();
            for at in 0..count {
                let content = TreeContent::Symlink(b"target".as_slice().into());
                let node = Node { content, uid: at, ..tree.implied_dir() };
                tree.add(parent, format!("name-{at:0>10}").as_bytes(), node).unwrap();
            }
        }
        let image = image(&tree);
        let root = image.root().unwrap();
        assert_eq!((root.mode & 0o7777, &root.xattrs), (0o1751, &xattrs("root", 0)));
        assert!(image.child(&root, b"missing").unwrap().is_none());
        let dir = image.child(&root, b"d").unwrap().unwrap();
        assert_eq!((dir.mtime, dir.uid, dir.gid, &dir.xattrs), ((-5, 7), 3_000_000, 7, &xattrs("d", 3)));
        for count in [1, 200, 280, 290, 1000] {
            let parent = image.child(&dir, format!("{count}").as_bytes()).unwrap().unwrap();
            for at in 0..count {
                let found = image.child(&parent, format!("name-{at:0>10}").as_bytes()).unwrap().unwrap();
                assert!(found.uid == at && !found.is_dir(), "{count} {at}");
            }
            assert!(image.child(&parent, b"name-").unwrap().is_none());
            let files = image.files(&parent).unwrap();
            assert_eq!(files.len(), count as usize);
            for (at, (name, file)) in (0..).zip(&files) {
                assert_eq!((name.as_slice(), file.uid), (format!("name-{at:0>10}").as_bytes(), at));
                assert_eq!((file.size(), image.target(file).unwrap()), (6, b"target".to_vec()));
            }
            assert!(image.child(&parent, format!("name-{count:0>10}").as_bytes()).unwrap().is_none());
        }
    }

    #[test]
    fn a_damaged_image_is_an_error() {
        assert!(ImageReader::open(tempfile::tempfile().unwrap()).is_err());
        let mut tree = Tree::new(Node::implied_dir());
        tree.add(ROOT, b"d", tree.implied_dir()).unwrap();
        let whole = image(&tree);
        for at in 0..400 {
            let file = tempfile::tempfile().unwrap();
            let mut bytes = vec![0; 8192];
            let length = whole.file.read_at(&mut bytes, 0).unwrap();
            bytes.truncate(length);
            bytes[4096 + at.min(length - 4097)] ^= 0xff;
            file.write_all_at(&bytes, 0).unwrap();
            let Ok(image) = ImageReader::open(file) else { continue };
            // Anything but a panic.
            if let Ok(root) = image.root() {
                drop(image.child(&root, b"d"));
                drop(image.files(&root));
            }
        }
    }
}
