//! Tar entries → one file with an EROFS file system in it.
//!
//! A file of the layer costs a node in memory and its data a write behind the data before; no name of the layer ever reaches the kernel. The
//! rules are those of a layer that is unpacked into a directory ([`crate::directory`]): a later entry beats an earlier one, and a whiteout of
//! the same layer; a directory that was removed and made again hides what lower layers have in it. What a kernel would refuse to set is refused.

mod directory;
mod disk;
mod special;
mod tree;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, BufRead, BufWriter, Seek, SeekFrom, Write},
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::SystemTime,
};

use rustix::io::Errno;
use special::Outcome;
use tree::{Content, Id, Node, Place, Tree};

use crate::{
    attributes::{self, NotSet},
    buffers,
    checks::{self, classify},
    digest::Digest,
    directory::{
        Applied,
        tree::{LookupError, is_within, take_within},
    },
    error::UnpackError,
    limits::Limits,
    marks,
    name::{self, Target},
    tar::{
        archive::{Archive, Entry},
        header::Kind,
        pax::Xattrs,
    },
};

/// Memory for the files of all layers that are unpacked at once. With more, layers go on in directories.
const MEMORY: usize = 16 << 20;
/// What a file takes beside its names and attributes: its node, and its place in the directory.
const EACH: usize = 200;

/// What the layers that are being unpacked keep in memory together.
#[derive(Debug, Clone, Default)]
pub struct Memory(Arc<AtomicUsize>);

/// A part of it, given back when dropped.
struct Kept {
    bytes: usize,
    all: Memory,
}

impl Kept {
    fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.all.0.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.all.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Applies the entries of one layer.
pub(crate) struct ImageApplier {
    tree: Tree,
    file: BufWriter<File>,
    /// The next block of data.
    block: u64,
    limits: Limits,
    whiteouts: Vec<(Vec<u8>, Vec<u8>)>,
    opaque: BTreeSet<Vec<u8>>,
    entries: u64,
    apparent: u64,
    kept: Kept,
    not_set: NotSet,
}

impl ImageApplier {
    /// Takes the empty file.
    pub(crate) fn new(mut file: File, limits: Limits, memory: Memory) -> Result<Self, UnpackError> {
        let failed = |error: io::Error| UnpackError::disk(b"", "making the layer's image", error);
        // The first block is written last.
        file.seek(SeekFrom::Start(disk::BLOCK)).map_err(failed)?;
        Ok(Self {
            tree: Tree::new(made_up()),
            file: BufWriter::with_capacity(buffers::SIZE, file),
            block: 1,
            limits,
            whiteouts: Vec::new(),
            opaque: BTreeSet::new(),
            entries: 0,
            apparent: 0,
            kept: Kept { bytes: 0, all: memory },
            not_set: NotSet::default(),
        })
    }

    /// Applies one entry, reading its data from the archive.
    pub(crate) fn apply<R: BufRead>(&mut self, entry: &Entry, archive: &mut Archive<R>) -> Result<(), UnpackError> {
        self.entries += 1;
        self.check_amount()?;
        match classify(entry)? {
            Target::Ignored => Ok(()),
            Target::Root => {
                self.tree.made_explicit(b"");
                self.describe(tree::ROOT, entry)
            }
            Target::Opaque { dir } => {
                let dir = self.parent(&dir, &entry.name)?;
                self.keep(dir.path.len());
                self.opaque.insert(dir.path.clone());
                Ok(())
            }
            Target::Whiteout { parent, name } => {
                let parent = self.parent(&parent, &entry.name)?;
                self.remember_whiteout(&parent, name);
                Ok(())
            }
            Target::Entry { parent, name } => {
                let parent = self.parent(&parent, &entry.name)?;
                self.make(entry, &parent, &name, archive)
            }
        }
    }

    fn check_amount(&self) -> Result<(), UnpackError> {
        checks::check_entries(self.entries.saturating_add(self.tree.made() as u64), &self.limits)
    }

    fn keep(&mut self, bytes: usize) {
        self.kept.add(bytes + EACH);
    }

    /// Whether what is kept in memory is as much as may be.
    pub(crate) fn is_full(&self) -> bool {
        self.kept.all.0.load(Ordering::Relaxed) > self.limits.kept_bytes.min(MEMORY)
    }

    fn parent(&mut self, path: &[u8], entry: &[u8]) -> Result<Rc<Place>, UnpackError> {
        let made = self.tree.made();
        let parent = self.tree.dir(path, true).map_err(|error| checks::no_parent(entry, error))?;
        let new = self.tree.made() - made;
        if new > 0 {
            self.check_amount()?;
            self.keep(new * (parent.path.len() + EACH));
        }
        Ok(parent)
    }

    fn remember_whiteout(&mut self, parent: &Place, name: Vec<u8>) {
        self.keep(parent.path.len() + name.len());
        self.whiteouts.push((parent.path.clone(), name));
    }

    fn make<R: BufRead>(
        &mut self,
        entry: &Entry,
        parent: &Place,
        name: &[u8],
        archive: &mut Archive<R>,
    ) -> Result<(), UnpackError> {
        let content = match entry.kind {
            Kind::File => self.data(entry, archive)?,
            Kind::Dir => return self.dir(entry, parent, name),
            Kind::Symlink => {
                checks::check_target(entry)?;
                Content::Symlink(entry.link.clone().into())
            }
            Kind::HardLink => return self.hard_link(entry, parent, name),
            // Overlay knows no other meaning for this device.
            Kind::Char if entry.device == (0, 0) => {
                self.remember_whiteout(parent, name.to_vec());
                return Ok(());
            }
            Kind::Char => Content::CharDevice(encode(checks::device(entry)?)),
            Kind::Block => Content::BlockDevice(encode(checks::device(entry)?)),
            Kind::Fifo => checks::device(entry).map(|_| Content::Fifo)?,
            Kind::GnuSparse | Kind::PaxLocal | Kind::PaxGlobal | Kind::LongName | Kind::LongLink => {
                return Err(UnpackError::refused(&entry.name, "an extension header out of place"));
            }
        };
        self.remove(parent, name);
        let id = self.add(entry, parent, name, content)?;
        self.describe(id, entry)
    }

    /// Something new, still like a directory that nobody described.
    fn add(&mut self, entry: &Entry, parent: &Place, name: &[u8], content: Content) -> Result<Id, UnpackError> {
        let link = if let Content::Symlink(target) = &content { target.len() } else { 0 };
        self.keep(name.len() + link);
        let node = Node { content, ..self.tree.made_up() };
        self.tree.add(parent.id, name, node).map_err(|error| UnpackError::disk(&entry.name, "creating it", error))
    }

    /// Gives a file what the entry says about it.
    fn describe(&mut self, id: Id, entry: &Entry) -> Result<(), UnpackError> {
        let (xattrs, mode) = self.xattrs(entry)?;
        self.keep(xattrs.iter().map(|(key, value)| key.len() + value.len()).sum());
        let node = self.tree.node_mut(id);
        node.mode = if entry.kind == Kind::Symlink { 0o777 } else { mode };
        (node.uid, node.gid, node.mtime, node.xattrs) = (entry.uid, entry.gid, entry.mtime, xattrs);
        Ok(())
    }

    fn remove(&mut self, parent: &Place, name: &[u8]) {
        if self.tree.remove(parent, name) {
            take_within(&mut self.opaque, &name::join(&parent.path, name));
        }
    }

    /// Writes a file's data behind that of the one before.
    fn data<R: BufRead>(&mut self, entry: &Entry, archive: &mut Archive<R>) -> Result<Content, UnpackError> {
        let disk = |error: io::Error| UnpackError::disk(&entry.name, "writing it", error);
        let begin = self.block * disk::BLOCK;
        let size = match &entry.sparse {
            None => {
                let mut size = 0;
                loop {
                    let data = archive.data()?;
                    if data.is_empty() {
                        break;
                    }
                    self.file.write_all(data).map_err(disk)?;
                    let written = data.len();
                    size += written as u64;
                    archive.consume(written);
                }
                size
            }
            Some(sparse) => {
                self.apparent = self.apparent.saturating_add(sparse.size);
                checks::check_apparent(entry, self.apparent, &self.limits)?;
                for (offset, length) in &sparse.segments {
                    self.file.seek(SeekFrom::Start(begin + offset)).map_err(disk)?;
                    let mut left = *length;
                    while left > 0 {
                        let data = archive.data()?;
                        let part = data.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                        if part == 0 {
                            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                        }
                        self.file.write_all(&data[..part]).map_err(disk)?;
                        archive.consume(part);
                        left -= part as u64;
                    }
                }
                self.file.seek(SeekFrom::Start(begin + sparse.size)).map_err(disk)?;
                sparse.size
            }
        };
        let block = u32::try_from(self.block).map_err(|_| disk(Errno::FBIG.into()))?;
        let padding = disk::blocks(size) * disk::BLOCK - size;
        io::copy(&mut io::Read::take(io::repeat(0), padding), &mut self.file).map_err(disk)?;
        self.block += disk::blocks(size);
        Ok(Content::File { block, size })
    }

    fn dir(&mut self, entry: &Entry, parent: &Place, name: &[u8]) -> Result<(), UnpackError> {
        let found = self.tree.child(parent.id, name).filter(|id| self.tree.is_dir(*id));
        let id = match found {
            Some(id) => id,
            None => {
                self.remove(parent, name);
                self.add(entry, parent, name, Content::Dir(BTreeMap::new()))?
            }
        };
        self.tree.made_explicit(&name::join(&parent.path, name));
        self.describe(id, entry)
    }

    /// A second name for something that this layer made before. Its attributes are those of the first name.
    fn hard_link(&mut self, entry: &Entry, parent: &Place, name: &[u8]) -> Result<(), UnpackError> {
        let refuse = |problem: &str| UnpackError::refused(&entry.name, problem);
        let target = name::clean(&entry.link).map_err(|problem| refuse(&format!("hard link target: {problem}")))?;
        let (target_parent, target_name) = name::split(&target);
        if target_name.is_empty() {
            return Err(refuse("a hard link to the layer's root"));
        }
        let missing = || refuse("a hard link to something that this layer does not have (so far)");
        let target_parent = self.tree.dir(target_parent, false).map_err(|error| match error {
            LookupError::Missing | LookupError::NotADir | LookupError::TooDeep => missing(),
            LookupError::Io(error) => UnpackError::disk(&entry.name, "finding its target", error),
        })?;
        let id = self.tree.child(target_parent.id, target_name).ok_or_else(missing)?;
        if self.tree.is_dir(id) {
            return Err(refuse("a hard link to a directory"));
        }
        if self.tree.child(parent.id, name) == Some(id) {
            return Ok(());
        }
        if is_within(&name::join(&target_parent.path, target_name), &name::join(&parent.path, name)) {
            return Err(refuse("a hard link that replaces its own target"));
        }
        self.remove(parent, name);
        self.keep(name.len());
        self.tree.name(parent.id, name, id);
        Ok(())
    }

    /// The attributes that are set, and the mode after that.
    fn xattrs(&mut self, entry: &Entry) -> Result<(Xattrs, u32), UnpackError> {
        let (mut kept, mut mode) = (Vec::new(), entry.mode & 0o7777);
        for (key, value) in attributes::allowed(entry, &self.limits, &mut self.not_set)? {
            let outcome = special::outcome(&key, &value);
            if let Outcome::SetWithMode(permissions) | Outcome::Only(Some(permissions)) = outcome {
                mode = mode & 0o7000 | permissions;
            }
            match outcome {
                Outcome::Set | Outcome::SetWithMode(_) => kept.push((key, value)),
                Outcome::Only(_) => {}
                Outcome::Unknown => self.not_set.note(&key),
                Outcome::Invalid => {
                    let invalid = Errno::INVAL.into();
                    return Err(UnpackError::disk(&entry.name, "setting its extended attributes", invalid));
                }
            }
        }
        // Room for the mark of a directory that hides what lies below.
        let mut most = kept.clone();
        most.push(opaque_mark());
        if disk::xattr_bytes(&most).is_none() {
            let bytes: usize = kept.iter().map(|(key, value)| key.len() + value.len()).sum();
            let problem = format!("its extended attributes of {bytes} bytes do not fit this file system");
            return Err(UnpackError::refused(&entry.name, problem));
        }
        Ok((kept, mode))
    }

    /// Whiteouts, opaque directories, and everything that is not data. The file system is named after the layer.
    pub(crate) fn finish(mut self, diff_id: &Digest) -> Result<Applied, UnpackError> {
        for (parent, name) in std::mem::take(&mut self.whiteouts) {
            self.whiteout(&parent, &name)?;
        }
        let opaque_root = self.opaque.remove(&b""[..]);
        for path in std::mem::take(&mut self.opaque) {
            // A later entry may have replaced the directory, and thereby hides what lay below it.
            if let Some(id) = self.tree.real_dir(&path) {
                self.tree.node_mut(id).xattrs.push(opaque_mark());
            }
        }
        let disk = |error: io::Error| UnpackError::disk(b"", "writing the layer's names", error);
        let mut uuid = [0; 16];
        hex::decode_to_slice(&diff_id.hex()[..32], &mut uuid).map_err(|error| disk(io::Error::other(error)))?;
        disk::write(&mut self.file, &self.tree, self.block, uuid).and_then(|()| self.file.flush()).map_err(disk)?;
        let implicit = self.tree.implicit().iter().cloned().collect();
        Ok(Applied {
            entries: self.entries,
            implicit,
            opaque_root,
            not_set: self.not_set,
            copy_only: false,
            image: true,
        })
    }

    fn whiteout(&mut self, parent: &[u8], name: &[u8]) -> Result<(), UnpackError> {
        // A later entry may have replaced the directory, perhaps by a link to another one.
        let Some(id) = self.tree.real_dir(parent) else { return Ok(()) };
        match self.tree.child(id, name) {
            Some(found) if self.tree.is_dir(found) => {
                // Removed and made again: a new directory, which inherits nothing.
                let path = name::join(parent, name);
                self.tree.made_explicit(&path);
                self.opaque.insert(path);
            }
            Some(_) => {}
            None => {
                let mark = Node { content: Content::CharDevice(0), mode: 0, ..self.tree.made_up() };
                let added = self.tree.add(id, name, mark);
                added.map_err(|error| UnpackError::disk(&name::join(parent, name), "making its whiteout", error))?;
            }
        }
        Ok(())
    }
}

/// An image to try out whether a node mounts such as layers become, and shows all that is in them.
#[derive(Debug, Clone)]
pub struct SampleImage {
    /// The file's content.
    pub bytes: Vec<u8>,
    /// Names and values of extended attributes that its root has, one of each kind that layers have. A kernel can be built without some.
    pub attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

impl SampleImage {
    /// Makes one, without files.
    pub fn new() -> io::Result<Self> {
        // Of the owner, his group, a mask and others, each with nobody's id.
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
        let tree = Tree::new(Node { xattrs: attributes.clone(), ..made_up() });
        let mut image = io::Cursor::new(Vec::new());
        disk::write(&mut image, &tree, 1, [0; 16])?;
        Ok(Self { bytes: image.into_inner(), attributes })
    }
}

/// A directory that no entry describes.
fn made_up() -> Node {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Node {
        content: Content::Dir(BTreeMap::new()),
        mode: 0o755,
        uid: 0,
        gid: 0,
        mtime: (now.as_secs().cast_signed(), now.subsec_nanos()),
        xattrs: Vec::new(),
        names: 0,
    }
}

/// The attribute of a directory that hides what lies below.
fn opaque_mark() -> (Vec<u8>, Vec<u8>) {
    (marks::OPAQUE.to_bytes().to_vec(), b"y".to_vec())
}

/// `new_encode_dev` of linux/kdev_t.h.
fn encode((major, minor): (u32, u32)) -> u32 {
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}
