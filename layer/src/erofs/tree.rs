//! A layer's files in memory: all but their data.
//!
//! What the kernel does for a layer that is unpacked into a directory (see [`crate::directory::tree`]) is done here, by the same rules: links are
//! followed with the layer's root as `/`, the way nowhere leads out, parents that the archive never mentions are made and remembered.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    rc::Rc,
};

use rustix::io::Errno;

use crate::{
    directory::tree::{LookupError, MAX_LINKS, MAX_STEPS, check_depth, components, take_within},
    name,
    tar::pax::Xattrs,
};

/// The longest name of a file (`EROFS_NAME_LEN`, as of most file systems).
const MAX_NAME: usize = 255;

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
    /// Names of what is no directory. Without any it is gone.
    pub(super) names: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Content {
    /// The names in a directory, sorted by their bytes.
    Dir(BTreeMap<Box<[u8]>, Id>),
    /// Data: the block where it begins, and its length in bytes.
    File {
        block: u32,
        size: u64,
    },
    Symlink(Box<[u8]>),
    /// With its number as the kernel encodes it (`new_encode_dev`).
    CharDevice(u32),
    BlockDevice(u32),
    Fifo,
}

/// A directory that was found: its number and its canonical path from the root.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) id: Id,
    pub(super) path: Vec<u8>,
}

/// All files of a layer.
pub(super) struct Tree {
    nodes: Vec<Node>,
    /// Directories that the archive never described, by their path.
    implicit: BTreeSet<Vec<u8>>,
    made: usize,
    /// A directory that the archive does not describe.
    made_up: Node,
    /// Entries of one directory follow each other.
    last: Option<(Vec<u8>, Rc<Place>)>,
}

impl Tree {
    /// An empty tree. `made_up` is a directory that the archive does not describe, as the root is to begin with.
    pub(super) fn new(made_up: Node) -> Self {
        let nodes = vec![made_up.clone()];
        Self { nodes, implicit: BTreeSet::from([Vec::new()]), made: 0, made_up, last: None }
    }

    /// A directory that the archive does not describe.
    pub(super) fn made_up(&self) -> Node {
        self.made_up.clone()
    }

    pub(super) fn node(&self, id: Id) -> &Node {
        &self.nodes[id as usize]
    }

    pub(super) fn node_mut(&mut self, id: Id) -> &mut Node {
        &mut self.nodes[id as usize]
    }

    /// Files that the tree has room for, those that are gone included.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// What stands at a name of a directory.
    pub(super) fn child(&self, dir: Id, name: &[u8]) -> Option<Id> {
        match &self.node(dir).content {
            Content::Dir(names) => names.get(name).copied(),
            _ => None,
        }
    }

    pub(super) fn is_dir(&self, id: Id) -> bool {
        matches!(self.node(id).content, Content::Dir(_))
    }

    /// The directory at a clean path, links followed inside the root; missing ones are made if `make`.
    pub(super) fn dir(&mut self, path: &[u8], make: bool) -> Result<Rc<Place>, LookupError> {
        if let Some((known, place)) = &self.last
            && known == path
        {
            return Ok(Rc::clone(place));
        }
        let place = Rc::new(self.walk(path, make)?);
        self.last = Some((path.to_vec(), Rc::clone(&place)));
        Ok(place)
    }

    fn walk(&mut self, path: &[u8], make: bool) -> Result<Place, LookupError> {
        let mut todo: VecDeque<Vec<u8>> = components(path).collect();
        // Where each directory on the way begins in `here`.
        let mut stack: Vec<(Id, usize)> = Vec::new();
        let mut here = Vec::new();
        let (mut links, mut steps) = (0, 0);
        while let Some(component) = todo.pop_front() {
            steps += 1;
            if steps > MAX_STEPS {
                return Err(LookupError::TooDeep);
            }
            if component == b".." {
                // As everywhere, the root is its own parent.
                if let Some((_, length)) = stack.pop() {
                    here.truncate(length);
                }
                continue;
            }
            let parent = stack.last().map_or(ROOT, |(id, _)| *id);
            let next = name::join(&here, &component);
            check_depth(&next)?;
            let id = self.step(parent, &component, &next, make)?;
            match &self.node(id).content {
                Content::Dir(_) => {
                    stack.push((id, here.len()));
                    here = next;
                }
                Content::Symlink(target) => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(LookupError::NotADir);
                    }
                    if target.starts_with(b"/") {
                        stack.clear();
                        here.clear();
                    }
                    for part in components(target).rev() {
                        todo.push_front(part);
                    }
                }
                _ => return Err(LookupError::NotADir),
            }
        }
        Ok(Place { id: stack.last().map_or(ROOT, |(id, _)| *id), path: here })
    }

    /// One component without following it; made if missing and wanted.
    fn step(&mut self, parent: Id, component: &[u8], path: &[u8], make: bool) -> Result<Id, LookupError> {
        if component.len() > MAX_NAME {
            return Err(LookupError::Io(Errno::NAMETOOLONG.into()));
        }
        match self.child(parent, component) {
            Some(id) => Ok(id),
            None if !make => Err(LookupError::Missing),
            // Only a link leads here: entries of such names are refused before.
            None if name::is_whiteout(component) => Err(LookupError::NotADir),
            None => {
                let id = self.add(parent, component, self.made_up()).map_err(LookupError::Io)?;
                self.implicit.insert(path.to_vec());
                self.made += 1;
                Ok(id)
            }
        }
    }

    /// Puts a new file where nothing stands.
    pub(super) fn add(&mut self, parent: Id, name: &[u8], node: Node) -> std::io::Result<Id> {
        let id = Id::try_from(self.nodes.len()).map_err(|_| Errno::NOSPC)?;
        self.nodes.push(node);
        self.name(parent, name, id);
        Ok(id)
    }

    /// One more name, where nothing stands, for a file that is there.
    pub(super) fn name(&mut self, parent: Id, name: &[u8], id: Id) {
        self.node_mut(id).names += 1;
        if let Content::Dir(names) = &mut self.node_mut(parent).content {
            names.insert(name.into(), id);
        }
    }

    /// Removes what stands at a name, whatever it is. Says whether it was a directory or a link.
    pub(super) fn remove(&mut self, parent: &Place, name: &[u8]) -> bool {
        let Content::Dir(names) = &mut self.node_mut(parent.id).content else { return false };
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
        if structural {
            self.last = None;
            take_within(&mut self.implicit, &name::join(&parent.path, name));
        }
        structural
    }

    /// The archive describes this directory after all.
    pub(super) fn made_explicit(&mut self, path: &[u8]) {
        self.implicit.remove(path);
    }

    /// How many directories were made on the way to others, so far.
    pub(super) fn made(&self) -> usize {
        self.made
    }

    /// Directories that the archive never described.
    pub(super) fn implicit(&self) -> &BTreeSet<Vec<u8>> {
        &self.implicit
    }

    /// The directory at a canonical path, if there is one.
    pub(super) fn real_dir(&mut self, path: &[u8]) -> Option<Id> {
        let place = self.dir(path, false).ok()?;
        (place.path == path).then_some(place.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Tree {
        let content = Content::Dir(BTreeMap::new());
        Tree::new(Node { content, mode: 0o755, uid: 0, gid: 0, mtime: (0, 0), xattrs: Vec::new(), names: 0 })
    }

    fn link(tree: &mut Tree, parent: &[u8], name: &[u8], target: &str) {
        let parent = tree.dir(parent, true).unwrap().id;
        let node = Node { content: Content::Symlink(target.as_bytes().into()), ..tree.made_up() };
        tree.add(parent, name, node).unwrap();
    }

    #[test]
    fn makes_and_remembers_missing_parents() {
        let mut tree = tree();
        assert!(matches!(tree.dir(b"a/b", false), Err(LookupError::Missing)));
        assert_eq!(tree.dir(b"a/b", true).unwrap().path, b"a/b");
        let implicit: Vec<_> = tree.implicit().iter().map(Vec::as_slice).collect();
        assert_eq!(implicit, [&b""[..], b"a", b"a/b"]);
        let root = tree.dir(b"", false).unwrap();
        assert!(tree.remove(&root, b"a"));
        assert_eq!(tree.implicit().len(), 1);
        assert!(matches!(tree.dir(b"a/b", false), Err(LookupError::Missing)));
    }

    #[test]
    fn links_resolve_inside_the_root() {
        let mut tree = tree();
        tree.dir(b"usr/lib", true).unwrap();
        tree.dir(b"etc", true).unwrap();
        for (parent, name, target) in [
            (&b""[..], &b"lib"[..], "usr/lib"),
            (b"", b"absolute", "/etc"),
            (b"usr", b"up", "../../../../etc"),
            (b"", b"circle", "circle"),
            (b"", b"dangling", "/nowhere/at/all"),
            (b"", b"whiteout", "etc/.wh.gone"),
        ] {
            link(&mut tree, parent, name, target);
        }
        let file = Node { content: Content::Fifo, ..tree.made_up() };
        tree.add(ROOT, b"file", file).unwrap();
        for (path, expected) in [
            (&b"lib"[..], &b"usr/lib"[..]),
            (b"lib/new", b"usr/lib/new"),
            (b"absolute", b"etc"),
            (b"usr/up", b"etc"),
            (b"dangling/x", b"nowhere/at/all/x"),
        ] {
            assert_eq!(tree.dir(path, true).unwrap().path, expected);
        }
        for bad in [&b"circle"[..], b"file", b"file/x", b"whiteout/x"] {
            assert!(matches!(tree.dir(bad, true), Err(LookupError::NotADir)), "{bad:?}");
        }
        assert!(tree.real_dir(b"lib").is_none());
        assert!(tree.real_dir(b"usr/lib").is_some());
    }

    #[test]
    fn depth_is_counted_where_links_lead() {
        let mut tree = tree();
        let deep = vec!["d"; 512].join("/");
        assert!(tree.dir(deep.as_bytes(), true).is_ok());
        assert!(matches!(tree.dir(format!("{deep}/d").as_bytes(), true), Err(LookupError::TooDeep)));
        link(&mut tree, b"", b"link", &deep);
        assert!(matches!(tree.dir(b"link/d", true), Err(LookupError::TooDeep)));
        link(&mut tree, b"", b"long", &"d/../".repeat(800));
        assert!(matches!(tree.dir(b"long/long/long", true), Err(LookupError::TooDeep)));
        link(&mut tree, b"", b"wide", &"n".repeat(256));
        assert!(matches!(tree.dir(b"wide/x", true), Err(LookupError::Io(_))));
    }

    #[test]
    fn what_is_removed_loses_its_names() {
        let mut tree = tree();
        let dir = tree.dir(b"d", true).unwrap();
        let file = Node { content: Content::Fifo, ..tree.made_up() };
        let id = tree.add(dir.id, b"one", file).unwrap();
        tree.name(ROOT, b"two", id);
        assert_eq!(tree.node(id).names, 2);
        let root = tree.dir(b"", false).unwrap();
        tree.remove(&root, b"d");
        assert_eq!(tree.node(id).names, 1);
        assert!(!tree.remove(&root, b"two"));
        assert_eq!(tree.node(id).names, 0);
    }
}
