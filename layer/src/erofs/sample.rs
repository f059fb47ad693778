//! A small image that shows whether this kernel mounts the images that layers become.

use std::io;

use super::{
    compressed::ChunkWriter,
    disk, format,
    tree::{Content, Node, ROOT, Tree},
};
use crate::tar::Xattrs;

/// An image with which a node tries out whether its kernel mounts layers and shows everything in them.
#[derive(Debug, Clone)]
pub struct SampleImage {
    /// The file's content.
    pub bytes: Vec<u8>,
    /// Names and values of the extended attributes of its root, one of each kind that layers have. A kernel can be
    /// built without some of them.
    pub attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

impl SampleImage {
    /// Makes one, without files.
    pub fn new() -> io::Result<Self> {
        Self::of(None)
    }

    /// The same with a compressed file. A kernel that cannot decompress it refuses to mount the image.
    pub fn compressed() -> io::Result<Self> {
        Self::of(Some(Content::File { block: 1, size: 2 * format::BLOCK, chunks: [1].into() }))
    }

    fn of(file: Option<Content>) -> io::Result<Self> {
        // ACL entries of the owner, the group, a mask and others. None of them has an id.
        let list = [(1u16, 7u16), (4, 5), (0x10, 5), (0x20, 5)].map(|(tag, permission)| {
            [&tag.to_le_bytes()[..], &permission.to_le_bytes(), &u32::MAX.to_le_bytes()].concat()
        });
        let capability = [&0x0200_0000u32.to_le_bytes()[..], &[0; 16]].concat();
        let attributes = [
            ("user.sample", b"u".to_vec()),
            ("trusted.overlay.opaque", b"y".to_vec()),
            ("security.capability", capability),
            ("system.posix_acl_access", [&2u32.to_le_bytes()[..], &list.concat()].concat()),
        ];
        let attributes: Xattrs = attributes.map(|(key, value)| (key.as_bytes().to_vec(), value)).to_vec();
        let mut tree = Tree::new(Node { xattrs: attributes.clone(), ..Node::implied_dir() });
        let mut image = io::Cursor::new(vec![0; format::BLOCK as usize]);
        if let Some(content) = file {
            image.get_mut().extend(ChunkWriter::new()?.store(&[0; 2 * format::BLOCK as usize])?);
            tree.add(ROOT, b"file", Node { content, mode: 0o644, ..Node::implied_dir() })?;
        }
        let start = format::blocks(image.get_ref().len() as u64);
        disk::write(&mut image, &tree, start, [0; 16])?;
        Ok(Self { bytes: image.into_inner(), attributes })
    }

    /// An image with one file of the name `file` and one block, 4096 bytes from [`SampleImage::DATA`] on, which are
    /// zeros.
    pub fn with_file() -> io::Result<Vec<u8>> {
        let mut tree = Tree::new(Node::implied_dir());
        let content = Content::file((Self::DATA / format::BLOCK) as u32, format::BLOCK);
        tree.add(ROOT, b"file", Node { content, ..Node::implied_dir() })?;
        let mut image = io::Cursor::new(Vec::new());
        disk::write(&mut image, &tree, Self::DATA / format::BLOCK + 1, [0; 16])?;
        Ok(image.into_inner())
    }

    /// The offset of the data of [`SampleImage::with_file`].
    pub const DATA: u64 = format::BLOCK;
}
