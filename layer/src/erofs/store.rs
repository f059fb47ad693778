//! A tree of files in memory, with their data in the image's file.
//!
//! A file of the layer takes a node in memory, and its data is appended to the image's file. No name of the layer
//! reaches the kernel. Attributes that the kernel would refuse or change are refused or changed here.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufWriter, Seek, SeekFrom, Write},
    os::unix::fs::FileExt,
};

use rustix::io::Errno;

use super::{
    compressed::{self, ChunkWriter},
    disk, format,
    kernel_xattrs::{self, Outcome},
    memory::{KeptMemory, MemoryCounter},
    tree::{Content, Id, Node, ROOT, Tree},
};
use crate::{
    apply::{Attributes, Existing, LayerStore, LookupError, Place, SkippedXattrs, SpecialFile, Step, xattrs_size},
    buffers,
    digest::Digest,
    error::UnpackError,
    limits::Limits,
    marks,
    tar::{EntryKind, Xattrs},
};

/// Bytes of memory for the files of all layers that are unpacked at once. Beyond that, layers go on in directories.
const MEMORY: usize = 16 << 20;
/// Bytes of memory that a file takes beside its names and attributes: its node, and its place in the directory.
const EACH: usize = 200;

/// Stores a layer's files in an EROFS image.
pub(crate) struct ErofsStore {
    tree: Tree,
    file: BufWriter<File>,
    /// The offset of the next write in the file.
    position: u64,
    /// The next free block for data.
    block: u64,
    kept: KeptMemory,
    kept_limit: usize,
}

/// A regular file whose data is being written.
pub(crate) struct OpenFile {
    id: Id,
    /// Its size so far.
    size: u64,
}

impl ErofsStore {
    /// Takes an empty file.
    pub(crate) fn new(file: File, limits: &Limits, memory: MemoryCounter) -> Result<Self, UnpackError> {
        Self::with(file, Node::implied_dir(), limits.kept_bytes.min(MEMORY), memory)
    }

    /// The same for a layer that becomes a native image: nothing depends on the time at which it is made, and there is
    /// more memory, because no directory can take its place.
    pub(crate) fn reproducible(file: File, limits: &Limits) -> Result<Self, UnpackError> {
        let implied_dir = Node { mtime: (0, 0), ..Node::implied_dir() };
        Self::with(file, implied_dir, limits.kept_bytes, MemoryCounter::default())
    }

    fn with(mut file: File, implied_dir: Node, kept_limit: usize, memory: MemoryCounter) -> Result<Self, UnpackError> {
        let failed = |error| UnpackError::disk("making the layer's image", error);
        // The first block is written last.
        file.seek(SeekFrom::Start(format::BLOCK)).map_err(failed)?;
        Ok(Self {
            tree: Tree::new(implied_dir),
            file: BufWriter::with_capacity(buffers::SIZE, file),
            position: format::BLOCK,
            block: 1,
            kept: KeptMemory::new(memory),
            kept_limit,
        })
    }

    /// Whether the layers that are being unpacked keep more in memory than they may.
    pub(crate) fn is_full(&self) -> bool {
        self.kept.total() > self.kept_limit
    }

    /// Writes everything that is not data. The file system gets its UUID from the layer's digest.
    pub(crate) fn finish(mut self, diff_id: &Digest) -> Result<(), UnpackError> {
        let failed = |error| UnpackError::disk("writing the layer's names", error);
        disk::write(&mut self.file, &self.tree, self.block, disk::uuid(diff_id))
            .and_then(|()| self.file.flush())
            .map_err(failed)
    }

    /// Writes the data that is still buffered. The file has all of it then, holes at its end included.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.file.flush()?;
        let file = self.file.get_ref();
        let end = self.block * format::BLOCK;
        if file.metadata()?.len() < end { file.set_len(end) } else { Ok(()) }
    }

    /// Compresses the data of each file where that is worth it. The compressed data is added at the end of the file,
    /// whose data must be written.
    pub(super) fn compress(&mut self) -> io::Result<()> {
        let (tree, file) = (&mut self.tree, self.file.get_ref());
        let (mut writer, mut data) = (ChunkWriter::new()?, vec![0; compressed::CHUNK as usize]);
        for id in 0..tree.len() as Id {
            let node = tree.node_mut(id);
            let Content::File { block, size, chunks } = &mut node.content else { continue };
            if node.names == 0 || *size <= format::BLOCK {
                continue;
            }
            let (begin, mut next, mut stored) = (u64::from(*block) * format::BLOCK, self.block, Vec::new());
            for offset in (0..*size).step_by(compressed::CHUNK as usize) {
                let data = &mut data[..compressed::CHUNK.min(*size - offset) as usize];
                file.read_exact_at(data, begin + offset)?;
                let blocks = writer.store(data)?;
                file.write_all_at(&blocks, next * format::BLOCK)?;
                let count = format::blocks(blocks.len() as u64);
                stored.push(count as u8);
                next += count;
            }
            if compressed::stored_blocks(*size, &stored) < format::blocks(*size) {
                *block = u32::try_from(self.block).map_err(|_| io::ErrorKind::FileTooLarge)?;
                *chunks = stored.into();
                self.block = next;
            }
        }
        Ok(())
    }

    /// The tree, and the file with the data.
    pub(super) fn parts(&self) -> (&Tree, &File) {
        (&self.tree, self.file.get_ref())
    }

    /// The tree, to be changed.
    pub(super) fn tree_mut(&mut self) -> &mut Tree {
        &mut self.tree
    }

    /// Counts a file, with bytes beside its node.
    fn count(&mut self, bytes: usize) {
        self.kept.add(bytes + EACH);
    }

    fn seek(&mut self, position: u64) -> io::Result<()> {
        if position != self.position {
            self.file.seek(SeekFrom::Start(position))?;
            self.position = position;
        }
        Ok(())
    }

    /// A new file where no file is, with the attributes of an implied directory. `None`: the name is taken.
    fn create(&mut self, parent: Id, name: &[u8], content: Content) -> io::Result<Option<Id>> {
        if self.tree.child(parent, name).is_some() {
            return Ok(None);
        }
        let target = if let Content::Symlink(target) = &content { target.len() } else { 0 };
        self.count(name.len() + target);
        let node = Node { content, ..self.tree.implied_dir() };
        self.tree.add(parent, name, node).map(Some)
    }

    fn describe(&mut self, id: Id, attributes: &Attributes, skipped: &mut SkippedXattrs) -> Result<(), UnpackError> {
        let (xattrs, mode) = set_as_the_kernel_does(attributes, skipped)?;
        self.count(xattrs_size(&xattrs));
        let node = self.tree.node_mut(id);
        node.mode = if matches!(node.content, Content::Symlink(_)) { 0o777 } else { mode };
        (node.uid, node.gid, node.mtime, node.xattrs) = (attributes.uid, attributes.gid, attributes.mtime, xattrs);
        Ok(())
    }
}

impl LayerStore for ErofsStore {
    type Dir = Id;
    type File = OpenFile;

    const IMPLIED_BYTES: usize = EACH;

    fn root(&self) -> Id {
        ROOT
    }

    fn open_directly(&self, _: &[u8]) -> Result<Option<Id>, LookupError> {
        Ok(None)
    }

    fn step(&self, parent: &Id, name: &[u8]) -> Result<Option<Step<Id>>, LookupError> {
        if name.len() > format::MAX_NAME {
            return Err(LookupError::Io(Errno::NAMETOOLONG.into()));
        }
        Ok(self.tree.child(*parent, name).map(|id| match &self.tree.node(id).content {
            Content::Dir(_) => Step::Dir(id),
            Content::Symlink(target) => Step::Symlink(target.to_vec()),
            _ => Step::Other,
        }))
    }

    fn make_implied(&mut self, parent: &Id, name: &[u8]) -> Result<Id, LookupError> {
        self.tree.add(*parent, name, self.tree.implied_dir()).map_err(LookupError::Io)
    }

    fn keep(&mut self, bytes: usize) -> Result<(), UnpackError> {
        // A full store moves to a directory instead of failing.
        self.count(bytes);
        Ok(())
    }

    fn find(&self, parent: &Place<Id>, name: &[u8]) -> io::Result<Option<Existing>> {
        let existing = |id: Id| {
            let node = self.tree.node(id);
            let kind = match node.content {
                Content::Dir(_) => EntryKind::Dir,
                Content::File { .. } => EntryKind::File,
                Content::Symlink(_) => EntryKind::Symlink,
                Content::CharDevice(_) => EntryKind::Char,
                Content::BlockDevice(_) => EntryKind::Block,
                Content::Fifo => EntryKind::Fifo,
            };
            Existing { kind, names: node.names.into(), inode: (0, id.into()) }
        };
        Ok(self.tree.child(parent.dir, name).map(existing))
    }

    fn remove(&mut self, parent: &Place<Id>, name: &[u8]) -> io::Result<bool> {
        Ok(self.tree.remove(parent.dir, name))
    }

    fn create_dir(&mut self, parent: &Place<Id>, name: &[u8]) -> io::Result<Option<()>> {
        Ok(self.create(parent.dir, name, Content::Dir(BTreeMap::new()))?.map(drop))
    }

    fn describe_dir(
        &mut self,
        parent: &Place<Id>,
        name: &[u8],
        attributes: Attributes,
        skipped: &mut SkippedXattrs,
    ) -> Result<(), UnpackError> {
        let missing = || UnpackError::disk("creating it", io::ErrorKind::NotFound.into());
        let id = self.tree.child(parent.dir, name).ok_or_else(missing)?;
        self.describe(id, &attributes, skipped)
    }

    fn describe_root(&mut self, attributes: Attributes, skipped: &mut SkippedXattrs) -> Result<(), UnpackError> {
        self.describe(ROOT, &attributes, skipped)
    }

    fn create_file(&mut self, parent: &Place<Id>, name: &[u8], _: u32) -> io::Result<Option<OpenFile>> {
        let content = Content::file(0, 0);
        Ok(self.create(parent.dir, name, content)?.map(|id| OpenFile { id, size: 0 }))
    }

    fn set_size(&mut self, file: &mut OpenFile, size: u64) -> io::Result<()> {
        file.size = size;
        Ok(())
    }

    fn write_at(&mut self, file: &mut OpenFile, offset: u64, data: &[u8]) -> io::Result<usize> {
        self.seek(self.block * format::BLOCK + offset)?;
        self.file.write_all(data)?;
        self.position += data.len() as u64;
        file.size = file.size.max(offset + data.len() as u64);
        Ok(data.len())
    }

    fn finish_file(
        &mut self,
        file: OpenFile,
        attributes: Attributes,
        skipped: &mut SkippedXattrs,
    ) -> Result<(), UnpackError> {
        let failed = |error| UnpackError::disk("writing it", error);
        let OpenFile { id, size } = file;
        let block = u32::try_from(self.block).map_err(|_| failed(Errno::FBIG.into()))?;
        self.seek(self.block * format::BLOCK + size).map_err(failed)?;
        let padding = format::blocks(size) * format::BLOCK - size;
        self.position += disk::pad(&mut self.file, padding).map_err(failed)?;
        self.block += format::blocks(size);
        self.tree.node_mut(id).content = Content::file(block, size);
        self.describe(id, &attributes, skipped)
    }

    fn create_special(
        &mut self,
        parent: &Place<Id>,
        name: &[u8],
        file: &SpecialFile<'_>,
        attributes: &Attributes,
        skipped: &mut SkippedXattrs,
    ) -> Result<Option<()>, UnpackError> {
        let content = match *file {
            SpecialFile::Symlink(target) => Content::Symlink(target.into()),
            SpecialFile::CharDevice(device) => Content::CharDevice(encode(device)),
            SpecialFile::BlockDevice(device) => Content::BlockDevice(encode(device)),
            SpecialFile::Fifo => Content::Fifo,
        };
        let created = self.create(parent.dir, name, content);
        match created.map_err(|error| UnpackError::disk("creating it", error))? {
            Some(id) => self.describe(id, attributes, skipped).map(Some),
            None => Ok(None),
        }
    }

    fn link(&mut self, (from, target): (&Place<Id>, &[u8]), parent: &Place<Id>, name: &[u8]) -> io::Result<Option<()>> {
        if self.tree.child(parent.dir, name).is_some() {
            return Ok(None);
        }
        let id = self.tree.child(from.dir, target).ok_or(io::ErrorKind::NotFound)?;
        self.count(name.len());
        self.tree.name(parent.dir, name, id);
        Ok(Some(()))
    }

    fn describe_again(
        &mut self,
        parent: &Place<Id>,
        name: &[u8],
        mut attributes: Attributes,
        skipped: &mut SkippedXattrs,
    ) -> Result<(), UnpackError> {
        let missing = || UnpackError::disk("finding it", io::ErrorKind::NotFound.into());
        let id = self.tree.child(parent.dir, name).ok_or_else(missing)?;
        for (key, value) in &self.tree.node(id).xattrs {
            if key != b"security.capability" && !attributes.xattrs.iter().any(|(new, _)| new == key) {
                let value = kernel_xattrs::after_chmod(key, value, attributes.mode);
                attributes.xattrs.push((key.clone(), value));
            }
        }
        self.describe(id, &attributes, skipped)
    }

    fn create_whiteout(&mut self, parent: &Place<Id>, name: &[u8]) -> io::Result<()> {
        let mark = Node { content: Content::CharDevice(0), mode: 0, ..self.tree.implied_dir() };
        self.tree.add(parent.dir, name, mark).map(drop)
    }

    fn mark_opaque(&mut self, dir: &Place<Id>) -> Result<(), UnpackError> {
        self.tree.node_mut(dir.dir).xattrs.push(opaque_mark());
        Ok(())
    }
}

/// The extended attributes and the mode that a file has after the kernel was asked to set the attributes.
fn set_as_the_kernel_does(attributes: &Attributes, skipped: &mut SkippedXattrs) -> Result<(Xattrs, u32), UnpackError> {
    let (mut kept, mut mode) = (Vec::new(), attributes.mode & 0o7777);
    for (key, value) in &attributes.xattrs {
        let outcome = kernel_xattrs::outcome(key, value);
        if let Outcome::SetWithMode(permissions) | Outcome::OnlyMode(Some(permissions)) = outcome {
            mode = mode & 0o7000 | permissions;
        }
        match outcome {
            Outcome::Set | Outcome::SetWithMode(_) => kept.push((key.clone(), value.clone())),
            Outcome::OnlyMode(_) => {}
            Outcome::Unknown => skipped.add(key),
            Outcome::Invalid => {
                return Err(UnpackError::disk("setting its extended attributes", Errno::INVAL.into()));
            }
        }
    }
    // The mark of an opaque directory must fit as well.
    let mut most = kept.clone();
    most.push(opaque_mark());
    if disk::xattr_bytes(&most).is_none() {
        let problem = format!("its extended attributes of {} bytes do not fit this file system", xattrs_size(&kept));
        return Err(UnpackError::refused(b"", problem));
    }
    Ok((kept, mode))
}

/// The extended attribute of a directory that hides the lower layers' content.
fn opaque_mark() -> (Vec<u8>, Vec<u8>) {
    (marks::OPAQUE.to_bytes().to_vec(), b"y".to_vec())
}

/// A device number as the kernel encodes it (`new_encode_dev` of linux/kdev_t.h).
fn encode((major, minor): (u32, u32)) -> u32 {
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::Lookup;

    fn empty() -> (ErofsStore, Lookup<Id>) {
        let file = tempfile::tempfile().unwrap();
        (ErofsStore::new(file, &Limits::default(), MemoryCounter::default()).unwrap(), Lookup::new())
    }

    fn link(store: &mut ErofsStore, lookup: &mut Lookup<Id>, parent: &[u8], name: &[u8], target: &str) {
        let parent = lookup.find_or_make(store, parent).unwrap().dir;
        store.create(parent, name, Content::Symlink(target.as_bytes().into())).unwrap().unwrap();
    }

    #[test]
    fn missing_parents_are_made_and_remembered() {
        let (mut store, mut lookup) = empty();
        assert!(matches!(lookup.find(&mut store, b"a/b"), Err(LookupError::Missing)));
        assert_eq!(lookup.find_or_make(&mut store, b"a/b").unwrap().path, b"a/b");
        let implied: Vec<_> = lookup.implied().iter().map(Vec::as_slice).collect();
        assert_eq!(implied, [&b""[..], b"a", b"a/b"]);
        let root = lookup.find(&mut store, b"").unwrap();
        assert!(store.remove(&root, b"a").unwrap());
        lookup.removed(b"a");
        assert_eq!(lookup.implied().len(), 1);
        assert!(matches!(lookup.find(&mut store, b"a/b"), Err(LookupError::Missing)));
    }

    #[test]
    fn links_resolve_inside_the_root() {
        let (mut store, mut lookup) = empty();
        lookup.find_or_make(&mut store, b"usr/lib").unwrap();
        lookup.find_or_make(&mut store, b"etc").unwrap();
        for (parent, name, target) in [
            (&b""[..], &b"lib"[..], "usr/lib"),
            (b"", b"absolute", "/etc"),
            (b"usr", b"up", "../../../../etc"),
            (b"", b"circle", "circle"),
            (b"", b"dangling", "/nowhere/at/all"),
            (b"", b"whiteout", "etc/.wh.gone"),
        ] {
            link(&mut store, &mut lookup, parent, name, target);
        }
        store.create(ROOT, b"file", Content::Fifo).unwrap().unwrap();
        for (path, expected) in [
            (&b"lib"[..], &b"usr/lib"[..]),
            (b"lib/new", b"usr/lib/new"),
            (b"absolute", b"etc"),
            (b"usr/up", b"etc"),
            (b"dangling/x", b"nowhere/at/all/x"),
        ] {
            assert_eq!(lookup.find_or_make(&mut store, path).unwrap().path, expected);
        }
        for bad in [&b"circle"[..], b"file", b"file/x", b"whiteout/x"] {
            assert!(matches!(lookup.find_or_make(&mut store, bad), Err(LookupError::NotADir)), "{bad:?}");
        }
        assert_ne!(lookup.find(&mut store, b"lib").unwrap().path, b"lib");
        assert_eq!(lookup.find(&mut store, b"usr/lib").unwrap().path, b"usr/lib");
    }

    #[test]
    fn depth_is_counted_where_links_lead() {
        let (mut store, mut lookup) = empty();
        let deep = vec!["d"; 512].join("/");
        assert!(lookup.find_or_make(&mut store, deep.as_bytes()).is_ok());
        assert!(matches!(lookup.find_or_make(&mut store, format!("{deep}/d").as_bytes()), Err(LookupError::TooDeep)));
        link(&mut store, &mut lookup, b"", b"link", &deep);
        assert!(matches!(lookup.find_or_make(&mut store, b"link/d"), Err(LookupError::TooDeep)));
        link(&mut store, &mut lookup, b"", b"long", &"d/../".repeat(800));
        assert!(matches!(lookup.find_or_make(&mut store, b"long/long/long"), Err(LookupError::TooDeep)));
        link(&mut store, &mut lookup, b"", b"wide", &"n".repeat(256));
        assert!(matches!(lookup.find_or_make(&mut store, b"wide/x"), Err(LookupError::Io(_))));
    }
}
