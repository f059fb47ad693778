//! A layer's files in memory: all but their data.

use std::{collections::BTreeMap, io, time::SystemTime};

use rustix::io::Errno;

use crate::tar::Xattrs;

/// A file's number in the tree.
pub(super) type Id = u32;

/// The layer's root.
pub(super) const ROOT: Id = 0;

/// A file of any kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) content: Content,
    /// Permissions and the three special bits.
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) mtime: (i64, u32),
    pub(super) xattrs: Xattrs,
    /// How many names it has. A file without a name is gone.
    pub(super) names: u32,
}

impl Node {
    /// Whether it is a directory.
    pub(super) fn is_dir(&self) -> bool {
        matches!(self.content, Content::Dir(_))
    }

    /// A directory that no entry describes, made now.
    pub(super) fn implied_dir() -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self {
            content: Content::Dir(BTreeMap::new()),
            mode: 0o755,
            uid: 0,
            gid: 0,
            mtime: (now.as_secs().cast_signed(), now.subsec_nanos()),
            xattrs: Vec::new(),
            names: 0,
        }
    }
}

/// What a file is, with its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Content {
    /// The names in a directory, sorted by their bytes.
    Dir(BTreeMap<Box<[u8]>, Id>),
    /// A regular file: the first block of its data, its size in bytes, and how many blocks each of its chunks takes.
    /// Data without chunks is not compressed.
    File {
        block: u32,
        size: u64,
        chunks: Box<[u8]>,
    },
    /// A symbolic link with its target.
    Symlink(Box<[u8]>),
    /// A device with its number as the kernel encodes it (`new_encode_dev`).
    CharDevice(u32),
    BlockDevice(u32),
    Fifo,
}

impl Content {
    /// A regular file whose data is not compressed.
    pub(super) fn file(block: u32, size: u64) -> Self {
        Self::File { block, size, chunks: Box::default() }
    }
}

/// All files of a layer.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    /// A directory that no entry describes. All of them have the same time.
    implied_dir: Node,
}

impl Tree {
    /// An empty tree. Its root is like `implied_dir`.
    pub(super) fn new(implied_dir: Node) -> Self {
        Self { nodes: vec![implied_dir.clone()], implied_dir }
    }

    /// A directory that no entry describes.
    pub(super) fn implied_dir(&self) -> Node {
        self.implied_dir.clone()
    }

    pub(super) fn node(&self, id: Id) -> &Node {
        &self.nodes[id as usize]
    }

    pub(super) fn node_mut(&mut self, id: Id) -> &mut Node {
        &mut self.nodes[id as usize]
    }

    /// How many nodes there are, those of removed files included.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The file of this name in a directory.
    pub(super) fn child(&self, dir: Id, name: &[u8]) -> Option<Id> {
        match &self.node(dir).content {
            Content::Dir(names) => names.get(name).copied(),
            _ => None,
        }
    }

    /// The file with this path. Empty names in it are skipped, so the empty path is the root's.
    pub(super) fn find(&self, path: &[u8]) -> Option<Id> {
        let mut names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        names.try_fold(ROOT, |id, name| self.child(id, name))
    }

    pub(super) fn is_dir(&self, id: Id) -> bool {
        self.node(id).is_dir()
    }

    /// Adds a new file. The name must be free.
    pub(super) fn add(&mut self, parent: Id, name: &[u8], node: Node) -> io::Result<Id> {
        let id = Id::try_from(self.nodes.len()).map_err(|_| Errno::NOSPC)?;
        self.nodes.push(node);
        self.name(parent, name, id);
        Ok(id)
    }

    /// Gives a file a further name, which must be free.
    pub(super) fn name(&mut self, parent: Id, name: &[u8], id: Id) {
        self.node_mut(id).names += 1;
        if let Content::Dir(names) = &mut self.node_mut(parent).content {
            names.insert(name.into(), id);
        }
    }

    /// Removes the file of this name with all that it contains. Returns whether it was a directory or a symbolic link.
    pub(super) fn remove(&mut self, parent: Id, name: &[u8]) -> bool {
        let Content::Dir(names) = &mut self.node_mut(parent).content else { return false };
        let Some(id) = names.remove(name) else { return false };
        let structural = matches!(self.node(id).content, Content::Dir(_) | Content::Symlink(_));
        let mut gone = vec![id];
        while let Some(id) = gone.pop() {
            let node = self.node_mut(id);
            node.names -= 1;
            if let Content::Dir(names) = &mut node.content {
                gone.extend(std::mem::take(names).into_values());
            }
        }
        structural
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Tree {
        let content = Content::Dir(BTreeMap::new());
        Tree::new(Node { content, mode: 0o755, uid: 0, gid: 0, mtime: (0, 0), xattrs: Vec::new(), names: 0 })
    }

    #[test]
    fn a_removed_file_loses_its_names() {
        let mut tree = tree();
        let dir = tree.add(ROOT, b"d", tree.implied_dir()).unwrap();
        let file = Node { content: Content::Fifo, ..tree.implied_dir() };
        let id = tree.add(dir, b"one", file).unwrap();
        tree.name(ROOT, b"two", id);
        assert_eq!(tree.node(id).names, 2);
        assert!(tree.remove(ROOT, b"d"));
        assert_eq!(tree.node(id).names, 1);
        assert!(!tree.remove(ROOT, b"two"));
        assert_eq!(tree.node(id).names, 0);
    }
}
