//! The messages that documents quote: each one is in the code.
//!
//! Two places of a document quote messages of the driver, with `…` for names and numbers: tables with the first column
//! `text`, `error`, `event of a task` or `part of the error`, and bold text at the begin of a paragraph in a section
//! about errors. Each part of a quotation must be in a source file.

use std::fs;

use fixtures::must::Must;

use crate::sources::{files, root};

/// The names of the first column of a table that quotes messages.
const COLUMNS: [&str; 4] = ["text", "error", "event of a task", "part of the error"];
/// A shorter part says nothing: it would be found anywhere.
const SHORTEST: usize = 4;
/// The crates with the texts.
const CRATES: [&str; 9] =
    ["cdi", "driver", "firewall", "host", "image-store", "layer", "log-drivers", "network", "runtime"];

/// The quotations in the tables of a document, each with its line.
fn quotations(document: &str) -> Vec<(usize, String)> {
    let (mut quotes, mut errors) = (false, false);
    let mut found = Vec::new();
    let mut last = "";
    for (number, line) in (1..).zip(document.lines()) {
        if let Some(heading) = line.strip_prefix("## ") {
            errors = heading.starts_with("Errors");
        }
        if let Some((bold, _)) = line.strip_prefix("**").and_then(|rest| rest.split_once("**:")).filter(|_| errors) {
            found.extend(spans(bold).map(|quotation| (number, quotation.to_owned())));
        } else if line.starts_with("|---") {
            quotes = first_cell(last).is_some_and(|name| COLUMNS.contains(&name));
        } else if let Some(cell) = first_cell(line).filter(|_| quotes) {
            found.extend(spans(cell).map(|quotation| (number, quotation.to_owned())));
        } else {
            quotes = false;
        }
        last = line;
    }
    found
}

/// The spans of code in a text.
fn spans(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

fn first_cell(line: &str) -> Option<&str> {
    Some(line.strip_prefix('|')?.split('|').next()?.trim())
}

/// The parts of a quotation between names and numbers.
fn parts(quotation: &str) -> impl Iterator<Item = &str> {
    quotation.split('…').map(|part| part.trim_matches([' ', ':', ','])).filter(|part| part.len() >= SHORTEST)
}

/// All sources of the crates as one text. Texts that go over several lines are joined.
fn sources() -> String {
    let paths = CRATES.iter().flat_map(|name| files(&root().join(name).join("src"), "rs"));
    let text: String = paths.map(|path| fs::read_to_string(path).must("a source")).collect();
    joined(&text).replace("\\\"", "\"")
}

/// A source with each literal in one line.
pub(crate) fn joined(text: &str) -> String {
    let mut joined = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        match line.strip_suffix('\\') {
            Some(begin) => {
                joined.push_str(begin);
                if let Some(next) = lines.peek_mut() {
                    *next = next.trim_start();
                }
            }
            None => {
                joined.push_str(line);
                joined.push('\n');
            }
        }
    }
    joined
}

/// The fixed parts of each text of an enum of errors.
fn errors<'a>(source: &'a str, name: &str) -> Vec<Vec<&'a str>> {
    let (_, body) = source.split_once(&format!("pub enum {name} {{")).must("the enum");
    let (body, _) = body.split_once("\n}\n").must("its end");
    let texts = body.split("#[error(").skip(1).filter_map(|attribute| attribute.split('"').nth(1));
    let fixed = |text: &'a str| {
        let parts = text.split('}').filter_map(|part| part.split('{').next());
        parts.map(|part| part.trim_matches([' ', ':', ';', ','])).filter(|part| part.len() >= SHORTEST).collect()
    };
    texts.map(fixed).filter(|parts: &Vec<&str>| !parts.is_empty()).collect()
}

#[test]
fn every_error_of_a_pull_is_explained() {
    let source = fs::read_to_string(root().join("image-store/src/error.rs")).must("the errors");
    let document = fs::read_to_string(root().join("docs/images.md")).must("the document");
    let quoted = quotations(&document);
    let is_explained = |part: &str| {
        let mut known = quoted.iter().flat_map(|(_, quotation)| parts(quotation));
        known.any(|known| part.contains(known) || known.contains(part))
    };
    let source = joined(&source);
    let errors = errors(&source, "PullError");
    assert!(errors.len() > 9, "{errors:?}");
    let missing: Vec<_> = errors.iter().filter(|parts| !parts.iter().any(|part| is_explained(part))).collect();
    assert!(missing.is_empty(), "not in docs/images.md: {missing:?}");
}

#[test]
fn every_quoted_message_is_in_the_code() {
    let sources = sources();
    let (mut missing, mut count) = (Vec::new(), 0);
    for path in files(&root().join("docs"), "md") {
        let document = fs::read_to_string(&path).must("a document");
        for (line, quotation) in quotations(&document) {
            count += 1;
            let unknown = parts(&quotation).filter(|part| !sources.contains(part));
            missing.extend(unknown.map(|part| format!("{}:{line}: {part:?}", path.display())));
        }
    }
    assert!(count > 60, "only {count} quotations");
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn tables_of_messages_are_read() {
    let document =
        "| text | remedy |\n|---|---|\n| `a … b`, `c` | `d` |\n| plain | |\n\n| option | |\n|---|---|\n| `e` | |";
    assert_eq!(quotations(document), [(3, "a … b".to_owned()), (3, "c".to_owned())]);
    let document = "**`f`**: no\n\n## Errors of pulls\n\n**`g`**, **`h`**: text with `i`\n\n## Other\n**`j`**: no";
    assert_eq!(quotations(document), [(5, "g".to_owned()), (5, "h".to_owned())]);
    assert_eq!(parts("Image: … of 5 … end …").collect::<Vec<_>>(), ["Image", "of 5"]);
}
