//! `docs/security.md` names a test for each promise: every one of them must exist, and nothing else can be named.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use fixtures::must::Must;

/// The directories that a file of the document can be in, by the first part of its name there.
const DIRECTORIES: [(&str, &str); 13] = [
    ("wire", "tests/tests/wire"),
    ("cases", "runtime/tests/cases"),
    ("driver", "driver/src"),
    ("plan", "driver/src/plan"),
    ("task", "driver/src/config/task"),
    ("plugin", "driver/src/config/plugin"),
    ("runtime", "runtime/src"),
    ("host", "host/src"),
    ("registry", "image-store/src/registry"),
    ("images", "image-store/tests/cases"),
    ("cdi", "cdi/src"),
    ("network", "network/src"),
    ("chaos", "tests/tests/chaos"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().must("the workspace's directory").to_owned()
}

/// Everything of the form `directory/file.rs::test` between backquotes.
fn named(text: &str) -> Vec<(String, String)> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted
        .filter_map(|word| word.split_once(".rs::"))
        .map(|(file, test)| (format!("{file}.rs"), test.to_owned()))
        .collect()
}

/// Whether a file has such a function and the test runner knows it: by an attribute above it, or by a list of cases.
fn is_test(source: &str, test: &str) -> bool {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let head = |line: &&str| {
        let signature = line.strip_prefix("async ").unwrap_or(line);
        signature.strip_prefix("fn ").and_then(|rest| rest.strip_prefix(test)).is_some_and(|rest| rest.starts_with('('))
    };
    let Some(at) = lines.iter().position(head) else { return false };
    let above = lines[..at].iter().rev().take_while(|line| line.starts_with("#[") || line.starts_with("//"));
    let attribute = above.into_iter().any(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test"));
    let listed = format!(", {test})");
    attribute || lines.iter().any(|line| line.contains("(\"") && line.contains(&listed))
}

#[test]
fn every_promise_has_its_test() {
    let text = fs::read_to_string(root().join("docs/security.md")).must("the document");
    let named = named(&text);
    assert!(named.len() > 40, "only {} tests are named", named.len());
    let mut sources: BTreeMap<String, String> = BTreeMap::new();
    let mut missing = Vec::new();
    for (file, test) in named {
        let (directory, name) = file.split_once('/').must(&file);
        let Some((_, directory)) = DIRECTORIES.iter().find(|(short, _)| *short == directory) else {
            missing.push(format!("{file}: no such directory"));
            continue;
        };
        let path = root().join(directory).join(name);
        let source = sources.entry(file.clone()).or_insert_with(|| fs::read_to_string(&path).unwrap_or_default());
        if !is_test(source, &test) {
            missing.push(format!("{file}::{test}"));
        }
    }
    assert_eq!(missing, Vec::<String>::new());
}

/// The list items of a section, each with its continuation lines.
fn items(section: &str) -> Vec<String> {
    let mut items: Vec<String> = Vec::new();
    for line in section.lines() {
        if line.starts_with("- ") {
            items.push(line.to_owned());
        } else if let (true, Some(item)) = (line.starts_with("  "), items.last_mut()) {
            item.push_str(line);
        }
    }
    items
}

/// Every list item of a section with promises names at least one test.
#[test]
fn no_promise_stands_alone() {
    let text = fs::read_to_string(root().join("docs/security.md")).must("the document");
    let sections = text.split("\n## ").skip(1).filter(|section| !section.starts_with("What is not promised"));
    let promises: Vec<String> = sections.flat_map(items).collect();
    assert!(promises.len() > 40, "only {} promises", promises.len());
    let bare: Vec<&String> = promises.iter().filter(|promise| !promise.contains(".rs::")).collect();
    assert_eq!(bare, Vec::<&String>::new());
}

/// A test of this file's parser.
#[test]
fn only_tests_are_recognized_as_tests() {
    let source = "#[test]\nfn one() {}\n#[tokio::test]\n// why\nasync fn two() {}\n\
                  fn three() {}\nfn four() {}\nconst CASES: &[_] = &[\n    (\"x_four\", four),\n];";
    for (name, expected) in
        [("one", true), ("two", true), ("three", false), ("four", true), ("fou", false), ("five", false)]
    {
        assert_eq!(is_test(source, name), expected, "{name}");
    }
    assert_eq!(named("a `wire/x.rs::y` b `z` `w/v.rs::u`").len(), 2);
}
