//! The modules of one crate and the arrows between them, read from its sources.
//!
//! A module is a source file. An arrow goes from the module that names an item to the module that the path leads to.
//! Where that module only re-exports the item, a second arrow goes to the module that defines it. Left out are `mod`
//! lines, re-exports of a module's own descendants (a facade), and code for tests.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    path::Path,
};

use fixtures::must::Must;
use syn::{
    Attribute, File, Item, ItemMod, ItemUse, Macro, UseTree, Visibility,
    visit::{self, Visit},
};

use crate::sources::sources;

/// The path of a module in its crate: `["store", "layout"]`. The crate's root is empty.
pub(crate) type Module = Vec<String>;

/// The arrows between the modules of a crate, each with the names that cause it.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    arrows: BTreeMap<Module, BTreeMap<Module, BTreeSet<String>>>,
}

/// A path in a module: its segments, and whether it is a public re-export under a name.
struct Named {
    path: Vec<String>,
    exported_as: Option<String>,
}

impl Graph {
    /// Reads the sources below a crate's `src` directory.
    pub(crate) fn of_crate(src: &Path) -> Self {
        Self::of_sources(sources(src))
    }

    /// Reads sources, each with its path below `src`.
    pub(crate) fn of_sources(sources: Vec<(String, String)>) -> Self {
        let mut named: BTreeMap<Module, Vec<Named>> = BTreeMap::new();
        for (path, text) in sources {
            let module = module_of(&path);
            if module.iter().any(|part| part == "tests") {
                continue;
            }
            let file = syn::parse_file(&text).must(&format!("parse {path}"));
            named.insert(module, paths_of(&file));
        }
        let modules: BTreeSet<Module> = named.keys().cloned().collect();
        let exports = exports(&named);
        let mut graph = Self::default();
        for (module, paths) in &named {
            for Named { path, exported_as } in paths {
                let written = resolve(path, module, &modules);
                let defined = follow(path, module, &modules, &exports, 0);
                for (target, item) in [written, defined].into_iter().flatten() {
                    let facade = exported_as.is_some() && target.starts_with(module);
                    if target != *module && !target.is_empty() && !facade {
                        let arrow = graph.arrows.entry(module.clone()).or_default().entry(target).or_default();
                        arrow.insert(item.first().cloned().unwrap_or_default());
                    }
                }
            }
        }
        graph
    }

    /// The modules that reach themselves, with the arrows between them; empty when there is no cycle.
    pub(crate) fn cycles(&self) -> String {
        let reach: BTreeMap<&Module, BTreeSet<&Module>> =
            self.arrows.keys().map(|module| (module, self.reachable(module))).collect();
        let on_cycle = |from: &Module, to: &Module| {
            from == to || (reach[from].contains(to) && reach.get(to).is_some_and(|back| back.contains(from)))
        };
        let mut text = String::new();
        for (from, arrows) in &self.arrows {
            for (to, names) in arrows.iter().filter(|(to, _)| on_cycle(from, to)) {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                writeln!(text, "{} -> {}: {}", from.join("::"), to.join("::"), names.join(", ")).must("a line");
            }
        }
        text
    }

    fn reachable(&self, from: &Module) -> BTreeSet<&Module> {
        let mut found = BTreeSet::new();
        let mut open: Vec<&Module> = self.arrows.get(from).into_iter().flat_map(BTreeMap::keys).collect();
        while let Some(next) = open.pop() {
            if found.insert(next) {
                open.extend(self.arrows.get(next).into_iter().flat_map(BTreeMap::keys));
            }
        }
        found
    }
}

/// `store/layout.rs` and `store/layout/mod.rs` are `store::layout`; `lib.rs` and `main.rs` are the root.
fn module_of(path: &str) -> Module {
    let mut parts: Module = path.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if parts.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
        parts.pop();
    }
    parts
}

fn paths_of(file: &File) -> Vec<Named> {
    let mut paths = Paths(Vec::new());
    paths.visit_file(file);
    paths.0
}

/// Collects paths. Code for tests is left out.
struct Paths(Vec<Named>);

impl<'ast> Visit<'ast> for Paths {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes: &[Attribute] = match item {
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Mod(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            _ => &[],
        };
        if !attributes.iter().any(is_for_tests) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        let outside = self.0.len();
        visit::visit_item_mod(self, item);
        // An inline module belongs to the file's module, which is its `super`.
        for Named { path, .. } in &mut self.0[outside..] {
            if path.first().is_some_and(|first| first == "super") {
                path[0] = "self".to_owned();
            }
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let exported = !matches!(item.vis, Visibility::Inherited);
        flatten(&item.tree, &mut Vec::new(), exported, &mut self.0);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let path: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if path.len() > 1 {
            self.0.push(Named { path, exported_as: None });
        }
        // Type arguments have paths of their own.
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        let text = call.tokens.to_string().replace(' ', "");
        for start in ["crate::", "super::"] {
            for (at, _) in text.match_indices(start) {
                let path = text[at..].split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':').next();
                let path = path.unwrap_or_default().split("::").map(str::to_owned).collect();
                self.0.push(Named { path, exported_as: None });
            }
        }
    }
}

/// Whether an item with this attribute is left out of the product.
pub(crate) fn is_for_tests(attribute: &Attribute) -> bool {
    let tokens = match &attribute.meta {
        syn::Meta::List(list) if list.path.is_ident("cfg") => list.tokens.to_string(),
        _ => return false,
    };
    tokens == "test"
}

fn flatten(tree: &UseTree, prefix: &mut Vec<String>, exported: bool, found: &mut Vec<Named>) {
    match tree {
        UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            flatten(&path.tree, prefix, exported, found);
            prefix.pop();
        }
        UseTree::Group(group) => group.items.iter().for_each(|tree| flatten(tree, prefix, exported, found)),
        UseTree::Glob(_) => found.push(Named { path: prefix.clone(), exported_as: None }),
        UseTree::Name(name) if name.ident == "self" => {
            let exported_as = prefix.last().cloned().filter(|_| exported);
            found.push(Named { path: prefix.clone(), exported_as });
        }
        UseTree::Name(name) => {
            let name = name.ident.to_string();
            let path = [&prefix[..], std::slice::from_ref(&name)].concat();
            found.push(Named { path, exported_as: Some(name).filter(|_| exported) });
        }
        UseTree::Rename(rename) => {
            let path = [&prefix[..], &[rename.ident.to_string()]].concat();
            found.push(Named { path, exported_as: Some(rename.rename.to_string()).filter(|_| exported) });
        }
    }
}

type Exports<'a> = BTreeMap<&'a Module, BTreeMap<&'a str, &'a [String]>>;

fn exports(named: &BTreeMap<Module, Vec<Named>>) -> Exports<'_> {
    let mut exports = Exports::new();
    for (module, paths) in named {
        for Named { path, exported_as } in paths {
            if let Some(name) = exported_as {
                exports.entry(module).or_default().insert(name, path);
            }
        }
    }
    exports
}

/// The module that a path leads to as it is written, and the rest of the path. `None` for paths into other crates.
fn resolve(path: &[String], module: &Module, modules: &BTreeSet<Module>) -> Option<(Module, Vec<String>)> {
    let mut rest = path;
    let mut target = match path.first()?.as_str() {
        "crate" => Module::new(),
        "self" | "super" => module.clone(),
        first if modules.contains(&[&module[..], &[first.to_owned()]].concat()) => module.clone(),
        _ => return None,
    };
    while let Some((first, after)) =
        rest.split_first().filter(|(first, _)| ["crate", "self", "super"].contains(&first.as_str()))
    {
        if first == "super" {
            target.pop();
        }
        rest = after;
    }
    while let Some((first, after)) = rest.split_first() {
        let child = [&target[..], std::slice::from_ref(first)].concat();
        if !modules.contains(&child) {
            break;
        }
        target = child;
        rest = after;
    }
    Some((target, rest.to_vec()))
}

/// The module that defines what a path leads to, through re-exports.
fn follow(
    path: &[String],
    module: &Module,
    modules: &BTreeSet<Module>,
    exports: &Exports<'_>,
    depth: usize,
) -> Option<(Module, Vec<String>)> {
    assert!(depth < 16, "a circle of re-exports: {path:?}");
    let (target, rest) = resolve(path, module, modules)?;
    let exported =
        rest.split_first().and_then(|(first, after)| Some((exports.get(&target)?.get(first.as_str())?, after)));
    match exported {
        Some((path, after)) => follow(&[path, after].concat(), &target, modules, exports, depth + 1),
        None => Some((target, rest)),
    }
}
