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

/// Applies entries one after the other; the reason, if one of them must be refused.
pub(crate) fn apply(entries: &[GeneratedEntry], limit: u64) -> Result<Model, &'static str> {
    let root = Node { kind: NodeKind::Dir(false), mode: 0o755, owner: 0, attribute: false };
    let mut model = Model { nodes: BTreeMap::from([(Path::new(), root)]), files: 0 };
    let (mut whiteouts, mut opaque) = (Vec::<(Path, String)>::new(), BTreeSet::<Path>::new());
    let (mut count, mut made, mut attribute) = (0, 0, false);
    for entry in entries {
        if entry.attribute && std::mem::replace(&mut attribute, true) {
            return Err("two PAX headers");
        }
        if entry.kind == b'g' {
            continue;
        }
        let attribute = std::mem::take(&mut attribute);
        count += 1;
        if count + made > limit {
            return Err("too many entries");
        }
        let path = clean(&entry.name)?;
        let Some((last, parent)) = path.split_last() else {
            if entry.kind != b'5' {
                return Err("the root is a directory");
            }
            continue;
        };
        let inside_whiteout = || parent.iter().any(|part| part.starts_with(".wh."));
        let mark = last == ".wh..wh..opq";
        if !mark && path.iter().any(|part| part.starts_with(".wh..wh.")) {
            continue;
        }
        if inside_whiteout() {
            return Err("inside a whiteout");
        }
        let parent = model.resolve(parent, Some(&mut made))?;
        if count + made > limit {
            return Err("too many entries");
        }
        if mark {
            opaque.insert(parent);
            continue;
        }
        if let Some(hidden) = last.strip_prefix(".wh.") {
            whiteouts.push((parent, hidden.to_owned()));
            continue;
        }
        if entry.kind == b'3' {
            whiteouts.push((parent, last.clone()));
            continue;
        }
        let at = child(&parent, last);
        let kind = match entry.kind {
            b'5' => {
                if !model.is_dir(&at) {
                    model.remove(&at);
                }
                NodeKind::Dir(false)
            }
            b'2' if entry.link.is_empty() => return Err("a link to nothing"),
            b'1' => {
                let target = clean(&entry.link)?;
                let (name, directory) = target.split_last().ok_or("a hard link to the root")?;
                let target = child(&model.resolve(directory, None)?, name);
                let node = model.nodes.get(&target).ok_or("missing")?.clone();
                let number = node.kind.number().ok_or("a hard link to a directory")?;
                if model.nodes.get(&at).is_some_and(|node| node.kind.number() == Some(number)) {
                    continue;
                }
                if target.starts_with(&at) {
                    return Err("it replaces its own target");
                }
                if model.is_dir(&at) {
                    opaque.retain(|dir| !dir.starts_with(&at));
                }
                model.remove(&at);
                model.nodes.insert(at, node);
                continue;
            }
            kind => {
                if model.is_dir(&at) {
                    opaque.retain(|dir| !dir.starts_with(&at));
                }
                model.remove(&at);
                let number = model.number();
                match kind {
                    b'2' => NodeKind::Link(number, entry.link.clone()),
                    b'4' => NodeKind::Block(number),
                    b'6' => NodeKind::Fifo(number),
                    _ => NodeKind::File(number, entry.size),
                }
            }
        };
        let attribute = attribute && matches!(kind, NodeKind::Dir(_) | NodeKind::File(..));
        let owner = entry.mode >> 2 & 1;
        model.nodes.insert(at, Node { kind, mode: entry.mode, owner, attribute });
    }
    if attribute {
        return Err("it ends after a PAX header");
    }
    for (parent, name) in whiteouts {
        let at = child(&parent, &name);
        if model.is_dir(&at) {
            opaque.insert(at);
        } else if model.is_dir(&parent) && !model.nodes.contains_key(&at) {
            model.nodes.insert(at, Node { kind: NodeKind::Whiteout, mode: 0, owner: 0, attribute: false });
        }
    }
    for path in opaque {
        if let Some(Node { kind: NodeKind::Dir(opaque), .. }) = model.nodes.get_mut(&path)
            && !path.is_empty()
        {
            *opaque = true;
        }
    }
    Ok(model)
}
