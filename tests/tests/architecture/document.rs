//! The list of modules in `docs/architecture.md`: it names exactly the source files of the crates that it lists.

use std::{collections::BTreeSet, fs};

use fixtures::must::Must;

use crate::sources::{root, sources};

/// The files that a list names, as `crate/src/path.rs`. An item that ends in `/` is a directory with a `mod.rs`; the
/// items of a directory are indented by two more spaces.
fn listed(text: &str) -> BTreeSet<String> {
    let mut files = BTreeSet::new();
    let (mut member, mut parents) = ("", Vec::new());
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("### ") {
            member = name;
        }
        let Some((indent, item)) = line.split_once("- `") else { continue };
        let Some((name, _)) = item.split_once('`') else { continue };
        if !indent.trim().is_empty() {
            continue;
        }
        parents.truncate(indent.len() / 2);
        let directory: String = parents.concat();
        if name.ends_with('/') {
            parents.push(name.to_owned());
            files.insert(format!("{member}/src/{directory}{name}mod.rs"));
        } else {
            files.insert(format!("{member}/src/{directory}{name}"));
        }
    }
    files
}

#[test]
fn the_document_lists_every_module_and_no_other() {
    let text = fs::read_to_string(root().join("docs/architecture.md")).must("the document");
    let (_, list) = text.split_once("\n## Modules\n").must("the list of modules");
    let members: Vec<&str> = list.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    assert!(members.len() > 5, "only {members:?}");
    let is_test = |path: &str| path.split('/').any(|part| matches!(part, "tests" | "tests.rs"));
    let exist: BTreeSet<String> = members
        .iter()
        .flat_map(|member| {
            let files = sources(&root().join(member).join("src"));
            files.into_iter().map(move |(path, _)| format!("{member}/src/{path}"))
        })
        .filter(|path| !is_test(path))
        .collect();
    let listed = listed(list);
    let missing: Vec<_> = exist.difference(&listed).collect();
    let stale: Vec<_> = listed.difference(&exist).collect();
    assert!(missing.is_empty() && stale.is_empty(), "docs/architecture.md: missing {missing:#?}, stale {stale:#?}");
}

#[test]
fn a_list_is_read_with_its_directories() {
    let text = "### a\n\n- `lib.rs`: One.\n- `b/`: Two, and\n  a `word`.\n  - `c.rs`: Three.\n- `d.rs`: Four.\n";
    let expected = ["a/src/b/c.rs", "a/src/b/mod.rs", "a/src/d.rs", "a/src/lib.rs"];
    assert_eq!(listed(text).into_iter().collect::<Vec<_>>(), expected);
}
