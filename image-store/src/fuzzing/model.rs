//! What a layer must look like, worked out in memory from its entries, in the plainest way there is.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::Path as FsPath,
};

use super::entries::Entry;

type Path = Vec<String>;

/// A tree: what stands at each path. The root stands at the empty one.
pub(super) struct Model {
    nodes: BTreeMap<Path, Node>,
    files: usize,
}

#[derive(Clone)]
struct Node {
    kind: Kind,
    mode: u32,
    owner: u32,
    attribute: bool,
}

#[derive(Clone, PartialEq)]
enum Kind {
    /// Whether it hides what lower layers have in it.
    Dir(bool),
    /// Number, of which several names may have the same, and size.
    File(usize, usize),
    Link(usize, String),
    Block(usize),
    Fifo(usize),
    Whiteout,
}

impl Kind {
    fn number(&self) -> Option<usize> {
        match self {
            Kind::File(number, _) | Kind::Link(number, _) | Kind::Block(number) | Kind::Fifo(number) => Some(*number),
            Kind::Dir(_) | Kind::Whiteout => None,
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
        matches!(self.nodes.get(path), Some(Node { kind: Kind::Dir(_), .. }))
    }

    /// The real place of a directory, links followed with the layer as root.
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
                (Some(Kind::Dir(_)), _) => here = next,
                (Some(Kind::Link(_, target)), _) => {
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
                    self.nodes
                        .insert(next.clone(), Node { kind: Kind::Dir(false), mode: 0o755, owner: 0, attribute: false });
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

    /// One line per path, in the form of [`look`].
    pub(super) fn describe(&self, attributes: bool) -> Vec<String> {
        let mut names: BTreeMap<usize, usize> = BTreeMap::new();
        for number in self.nodes.values().filter_map(|node| node.kind.number()) {
            *names.entry(number).or_default() += 1;
        }
        let shown = |(path, node): (&Path, &Node)| {
            let count = node.kind.number().map_or(0, |number| names[&number]);
            let kind = match &node.kind {
                Kind::Dir(opaque) => format!("dir {opaque}"),
                Kind::File(_, size) => format!("file {size}"),
                Kind::Link(_, target) => format!("link {target}"),
                Kind::Block(_) => "block".into(),
                Kind::Fifo(_) => "fifo".into(),
                Kind::Whiteout => "whiteout".into(),
            };
            line(&path.join("/"), &kind, node.mode, node.owner, count, node.attribute && attributes)
        };
        let root = Path::new();
        let mut lines: Vec<_> = self.nodes.iter().filter(|(path, _)| **path != root).map(shown).collect();
        lines.sort();
        lines
    }
}

fn line(path: &str, kind: &str, mode: u32, owner: u32, names: usize, attribute: bool) -> String {
    let mode = if kind.starts_with("link") || kind == "whiteout" { 0 } else { mode };
    format!("{path} {kind} {mode:o} {owner} {names} {attribute}")
}

/// Applies entries one after the other; the reason, if one of them must be refused.
pub(super) fn apply(entries: &[Entry], limit: u64) -> Result<Model, &'static str> {
    let root = Node { kind: Kind::Dir(false), mode: 0o755, owner: 0, attribute: false };
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
                Kind::Dir(false)
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
                    b'2' => Kind::Link(number, entry.link.clone()),
                    b'4' => Kind::Block(number),
                    b'6' => Kind::Fifo(number),
                    _ => Kind::File(number, entry.size),
                }
            }
        };
        let attribute = attribute && matches!(kind, Kind::Dir(_) | Kind::File(..));
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
            model.nodes.insert(at, Node { kind: Kind::Whiteout, mode: 0, owner: 0, attribute: false });
        }
    }
    for path in opaque {
        if let Some(Node { kind: Kind::Dir(opaque), .. }) = model.nodes.get_mut(&path)
            && !path.is_empty()
        {
            *opaque = true;
        }
    }
    Ok(model)
}

/// What stands in a directory, one line per path.
pub(super) fn look(directory: &FsPath) -> Vec<String> {
    let mut lines = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next).expect("a directory") {
            let path = entry.expect("an entry").path();
            let meta = fs::symlink_metadata(&path).expect("what a directory lists");
            let kind = meta.file_type();
            let xattrs = super::xattrs(&path);
            let has = |name: &str| xattrs.iter().any(|known| known == name);
            let kind = if kind.is_dir() {
                format!("dir {}", has("trusted.overlay.opaque"))
            } else if kind.is_file() {
                format!("file {}", meta.len())
            } else if kind.is_symlink() {
                format!("link {}", fs::read_link(&path).expect("a link").display())
            } else if kind.is_char_device() {
                assert_eq!(meta.rdev(), 0);
                "whiteout".to_owned()
            } else if kind.is_block_device() {
                "block".to_owned()
            } else {
                "fifo".to_owned()
            };
            let names = if kind.starts_with("dir") || kind == "whiteout" { 0 } else { meta.nlink() as usize };
            let shown = path.strip_prefix(directory).expect("below the directory").display().to_string();
            lines.push(line(&shown, &kind, meta.mode() & 0o7777, meta.uid(), names, has("user.a")));
            if meta.is_dir() {
                open.push(path);
            }
        }
    }
    lines.sort();
    lines
}
