//! What a layer must become, worked out in memory from its entries in the simplest way.

use std::collections::{BTreeMap, BTreeSet};

use crate::{entries::GeneratedEntry, tree::line};

type Path = Vec<String>;

/// The file at each path. The root has the empty path.
pub(crate) struct Model {
    nodes: BTreeMap<Path, Node>,
    files: usize,
}

#[derive(Clone)]
struct Node {
    kind: NodeKind,
    mode: u32,
    owner: u32,
    attribute: bool,
}

#[derive(Clone, PartialEq)]
enum NodeKind {
    /// Whether it hides the lower layers' content.
    Dir(bool),
    /// Its number, which all its names share, and its size.
    File(usize, usize),
    Link(usize, String),
    Block(usize),
    Fifo(usize),
    Whiteout,
}

impl NodeKind {
    fn number(&self) -> Option<usize> {
        match self {
            NodeKind::File(number, _)
            | NodeKind::Link(number, _)
            | NodeKind::Block(number)
            | NodeKind::Fifo(number) => Some(*number),
            NodeKind::Dir(_) | NodeKind::Whiteout => None,
        }
    }
}

fn parts(text: &str) -> impl DoubleEndedIterator<Item = String> + '_ {
    text.split('/').filter(|part| !part.is_empty() && *part != ".").map(str::to_owned)
}

fn clean(text: &str) -> Result<Path, &'static str> {
    let path: Path = parts(text).collect();
    if path.iter().any(|part| part == "..") { Err("upwards") } else { Ok(path) }
}

fn child(parent: &[String], name: &str) -> Path {
    [parent, &[name.to_owned()]].concat()
}

impl Model {
    fn is_dir(&self, path: &[String]) -> bool {
        matches!(self.nodes.get(path), Some(Node { kind: NodeKind::Dir(_), .. }))
    }

    /// The canonical path of a directory. Links are followed with the layer as root. `made` counts the directories that
    /// are made.
    fn resolve(&mut self, path: &[String], made: Option<&mut u64>) -> Result<Path, &'static str> {
        let mut todo: Vec<String> = path.iter().rev().cloned().collect();
        let (mut here, mut links, mut made) = (Path::new(), 0, made);
        while let Some(part) = todo.pop() {
            if part == ".." {
                here.pop();
                continue;
            }
            let next = child(&here, &part);
            match (self.nodes.get(&next).map(|node| node.kind.clone()), &mut made) {
                (Some(NodeKind::Dir(_)), _) => here = next,
                (Some(NodeKind::Link(_, target)), _) => {
                    links += 1;
                    if links > 40 {
                        return Err("a circle of links");
                    }
                    if target.starts_with('/') {
                        here.clear();
                    }
                    todo.extend(parts(&target).rev());
                }
                (Some(_), _) => return Err("no directory"),
                (None, Some(made)) if !part.starts_with(".wh.") => {
                    **made += 1;
                    self.nodes.insert(
                        next.clone(),
                        Node { kind: NodeKind::Dir(false), mode: 0o755, owner: 0, attribute: false },
                    );
                    here = next;
                }
                (None, _) => return Err("missing"),
            }
        }
        Ok(here)
    }

    fn remove(&mut self, path: &[String]) {
        self.nodes.retain(|known, _| !known.starts_with(path));
    }

    fn number(&mut self) -> usize {
        self.files += 1;
        self.files
    }

    /// One line per path, in the form of [`crate::tree::look`].
    pub(crate) fn describe(&self, attributes: bool) -> Vec<String> {
        let mut names: BTreeMap<usize, usize> = BTreeMap::new();
        for number in self.nodes.values().filter_map(|node| node.kind.number()) {
            *names.entry(number).or_default() += 1;
        }
        let shown = |(path, node): (&Path, &Node)| {
            let count = node.kind.number().map_or(0, |number| names[&number]);
            let kind = match &node.kind {
                NodeKind::Dir(opaque) => format!("dir {opaque}"),
                NodeKind::File(_, size) => format!("file {size}"),
                NodeKind::Link(_, target) => format!("link {target}"),
                NodeKind::Block(_) => "block".into(),
                NodeKind::Fifo(_) => "fifo".into(),
                NodeKind::Whiteout => "whiteout".into(),
            };
            line(&path.join("/"), &kind, node.mode, node.owner, count, node.attribute && attributes)
        };
        let root = Path::new();
        let mut lines: Vec<_> = self.nodes.iter().filter(|(path, _)| **path != root).map(shown).collect();
        lines.sort();
        lines
    }
}

/// Applies entries one after the other. Returns the reason if one of them must be refused.
pub(crate) fn apply(entries: &[GeneratedEntry], limit: u64) -> Result<Model, &'static str> {
    let root = Node { kind: NodeKind::Dir(false), mode: 0o755, owner: 0, attribute: false };
    let mut replay = Replay {
        model: Model { nodes: BTreeMap::from([(Path::new(), root)]), files: 0 },
        whiteouts: Vec::new(),
        opaque: BTreeSet::new(),
        count: 0,
        limit,
    };
    let mut attribute = false;
    for entry in entries {
        if entry.attribute && std::mem::replace(&mut attribute, true) {
            return Err("two PAX headers");
        }
        if entry.kind != b'g' {
            replay.apply(entry, std::mem::take(&mut attribute))?;
        }
    }
    if attribute {
        return Err("it ends after a PAX header");
    }
    Ok(replay.finish())
}

/// A model, and what waits for the end of the archive.
struct Replay {
    model: Model,
    whiteouts: Vec<(Path, String)>,
    opaque: BTreeSet<Path>,
    /// Entries and directories that were made on the way.
    count: u64,
    limit: u64,
}

impl Replay {
    fn apply(&mut self, entry: &GeneratedEntry, attribute: bool) -> Result<(), &'static str> {
        self.count += 1;
        self.check_count()?;
        let path = clean(&entry.name)?;
        let Some((last, parent)) = path.split_last() else {
            return if entry.kind == b'5' { Ok(()) } else { Err("the root is a directory") };
        };
        let mark = last == ".wh..wh..opq";
        if !mark && path.iter().any(|part| part.starts_with(".wh..wh.")) {
            return Ok(());
        }
        if parent.iter().any(|part| part.starts_with(".wh.")) {
            return Err("inside a whiteout");
        }
        let parent = self.model.resolve(parent, Some(&mut self.count))?;
        self.check_count()?;
        if mark {
            self.opaque.insert(parent);
        } else if let Some(hidden) = last.strip_prefix(".wh.") {
            self.whiteouts.push((parent, hidden.to_owned()));
        } else if entry.kind == b'3' {
            self.whiteouts.push((parent, last.clone()));
        } else if entry.kind == b'1' {
            self.hard_link(entry, child(&parent, last), attribute)?;
        } else {
            self.file(entry, child(&parent, last), attribute)?;
        }
        Ok(())
    }

    fn check_count(&self) -> Result<(), &'static str> {
        if self.count > self.limit { Err("too many entries") } else { Ok(()) }
    }

    fn remove(&mut self, path: &Path) {
        if self.model.is_dir(path) {
            self.opaque.retain(|dir| !dir.starts_with(path));
        }
        self.model.remove(path);
    }

    fn hard_link(&mut self, entry: &GeneratedEntry, path: Path, attribute: bool) -> Result<(), &'static str> {
        let target = clean(&entry.link)?;
        let (name, directory) = target.split_last().ok_or("a hard link to the root")?;
        let target = child(&self.model.resolve(directory, None)?, name);
        let node = self.model.nodes.get(&target).ok_or("missing")?.clone();
        let number = node.kind.number().ok_or("a hard link to a directory")?;
        if self.model.nodes.get(&path).is_none_or(|node| node.kind.number() != Some(number)) {
            if target.starts_with(&path) {
                return Err("it replaces its own target");
            }
            self.remove(&path);
            self.model.nodes.insert(path, node);
        }
        // The file gets the attributes of the last entry, under all its names.
        for node in self.model.nodes.values_mut().filter(|node| node.kind.number() == Some(number)) {
            (node.mode, node.owner) = (entry.mode, entry.mode >> 2 & 1);
            node.attribute |= attribute && matches!(node.kind, NodeKind::File(..));
        }
        Ok(())
    }

    /// A file of any kind but a hard link.
    fn file(&mut self, entry: &GeneratedEntry, path: Path, attribute: bool) -> Result<(), &'static str> {
        if entry.kind == b'2' && entry.link.is_empty() {
            return Err("a link to nothing");
        }
        let is_dir = entry.kind == b'5';
        if !is_dir || !self.model.is_dir(&path) {
            self.remove(&path);
        }
        let kind = match entry.kind {
            b'5' => NodeKind::Dir(false),
            b'2' => NodeKind::Link(self.model.number(), entry.link.clone()),
            b'4' => NodeKind::Block(self.model.number()),
            b'6' => NodeKind::Fifo(self.model.number()),
            _ => NodeKind::File(self.model.number(), entry.size),
        };
        let attribute = attribute && matches!(kind, NodeKind::Dir(_) | NodeKind::File(..));
        let owner = entry.mode >> 2 & 1;
        self.model.nodes.insert(path, Node { kind, mode: entry.mode, owner, attribute });
        Ok(())
    }

    /// Applies whiteouts and opaque marks.
    fn finish(mut self) -> Model {
        for (parent, name) in self.whiteouts {
            let path = child(&parent, &name);
            if self.model.is_dir(&path) {
                self.opaque.insert(path);
            } else if self.model.is_dir(&parent) && !self.model.nodes.contains_key(&path) {
                let whiteout = Node { kind: NodeKind::Whiteout, mode: 0, owner: 0, attribute: false };
                self.model.nodes.insert(path, whiteout);
            }
        }
        for path in self.opaque.iter().filter(|path| !path.is_empty()) {
            if let Some(Node { kind: NodeKind::Dir(opaque), .. }) = self.model.nodes.get_mut(path) {
                *opaque = true;
            }
        }
        self.model
    }
}
