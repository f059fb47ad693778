//! The documents: every link to a file of the repository leads somewhere, and every block of JSON or of shell
//! commands can be read.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use fixtures::must::Must;
use pulldown_cmark::{CodeBlockKind, Event, Parser, Tag, TagEnd};

use crate::sources::{files, root};

/// What a document links to, what it can be linked at, and its blocks of code.
#[derive(Debug, Default, PartialEq)]
struct Document {
    links: Vec<String>,
    headings: Vec<String>,
    /// Language and text.
    blocks: Vec<(String, String)>,
}

impl Document {
    fn read(text: &str) -> Self {
        let mut document = Self::default();
        let mut heading = None;
        let mut block: Option<(String, String)> = None;
        for event in Parser::new_ext(text, pulldown_cmark::Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    document.links.push(dest_url.into_string());
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => document.headings.extend(heading.take()),
                Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(language))) => {
                    block = Some((language.into_string(), String::new()));
                }
                Event::End(TagEnd::CodeBlock) => document.blocks.extend(block.take()),
                Event::Text(text) | Event::Code(text) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&text);
                    }
                    if let Some((_, code)) = &mut block {
                        code.push_str(&text);
                    }
                }
                _ => {}
            }
        }
        document
    }

    /// The fragments of the headings, as git forges make them: lower case, hyphens for spaces, no other punctuation. A
    /// heading that comes again has a number.
    fn fragments(&self) -> Vec<String> {
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        let mut fragments = Vec::new();
        for heading in &self.headings {
            let kept = heading.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
            let fragment = kept.collect::<String>().to_lowercase().replace(' ', "-");
            let again = seen.entry(fragment.clone()).or_default();
            fragments.push(if *again == 0 { fragment } else { format!("{fragment}-{again}") });
            *again += 1;
        }
        fragments
    }
}

/// All documents of the repository: path and content.
fn documents() -> BTreeMap<PathBuf, Document> {
    let files = files(&root(), "md").into_iter();
    files.map(|path| (path.clone(), Document::read(&fs::read_to_string(path).must("a document")))).collect()
}

/// What is wrong with a link of the document at `path`.
fn problem(path: &Path, link: &str, documents: &BTreeMap<PathBuf, Document>) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (file, fragment) = link.split_once('#').unwrap_or((link, ""));
    let target = if file.is_empty() { path.to_owned() } else { path.parent()?.join(file) };
    let Ok(target) = target.canonicalize() else { return Some(format!("{link}: no such file")) };
    let found = fragment.is_empty()
        || documents.get(&target).is_some_and(|document| document.fragments().iter().any(|known| known == fragment));
    (!found).then(|| format!("{link}: no such heading"))
}

#[test]
fn every_link_of_the_documents_leads_somewhere() {
    let documents = documents();
    assert!(documents.len() > 20, "only {:?}", documents.keys());
    let mut problems = Vec::new();
    for (path, document) in &documents {
        let found = document.links.iter().filter_map(|link| problem(path, link, &documents));
        problems.extend(found.map(|problem| format!("{}: {problem}", path.display())));
    }
    assert!(problems.is_empty(), "{problems:#?}");
}

#[test]
fn the_index_lists_each_document_once() {
    let index = root().join("docs/README.md");
    let index = Document::read(&fs::read_to_string(index).must("the index"));
    let listed: Vec<&str> = index.links.iter().filter_map(|link| link.split('#').next()).collect();
    for path in files(&root().join("docs"), "md") {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let count = listed.iter().filter(|link| **link == name).count();
        assert!(name == "README.md" || count == 1, "docs/README.md lists {name} {count} times");
    }
}

#[test]
fn every_json_block_of_the_documents_is_json() {
    for (path, document) in documents() {
        for (language, text) in document.blocks.iter().filter(|(language, _)| language == "json") {
            let parsed: Result<serde_json::Value, _> = serde_json::from_str(text);
            assert!(parsed.is_ok(), "{}: {language}: {:?}\n{text}", path.display(), parsed.err());
        }
    }
}

/// The targets of `make` in a block of shell commands.
fn targets(block: &str) -> impl Iterator<Item = &str> {
    let lines = block.lines().filter_map(|line| line.strip_prefix("make "));
    let is_target = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    lines.flat_map(move |line| line.split_whitespace().take_while(is_target))
}

/// bash reads each block, and each target of `make` in one is in the Makefile.
#[test]
fn every_block_of_shell_commands_can_be_read() {
    let makefile = fs::read_to_string(root().join("Makefile")).must("the Makefile");
    for (path, document) in documents() {
        for (_, text) in document.blocks.iter().filter(|(language, _)| language == "sh") {
            let read = Command::new("bash").args(["-n", "-c", text]).output().must("run bash");
            let problem = String::from_utf8_lossy(&read.stderr);
            assert!(read.status.success(), "{}: {problem}\n{text}", path.display());
            let unknown = targets(text).find(|name| !makefile.contains(&format!("\n{name}: ")));
            assert!(unknown.is_none(), "{}: no target {unknown:?}\n{text}", path.display());
        }
    }
}

#[test]
fn links_headings_and_blocks_are_read() {
    let text =
        "# One `two`, three\n\n[a](b.md#c) ![d](e.svg)\n\n## Again\n\n```json\n{\n}\n```\n\n## Again\n\n`[no](link)`\n";
    let document = Document::read(text);
    assert_eq!(document.links, ["b.md#c", "e.svg"]);
    assert_eq!(document.fragments(), ["one-two-three", "again", "again-1"]);
    assert_eq!(document.blocks, [("json".to_owned(), "{\n}\n".to_owned())]);
}

#[test]
fn targets_are_told_from_variables_and_comments() {
    let block = "make bench ARGS=\"pull 3\"\nmake package   # make no\ncd x; make y\nmake setup build && true";
    assert_eq!(targets(block).collect::<Vec<_>>(), ["bench", "package", "setup", "build"]);
}
