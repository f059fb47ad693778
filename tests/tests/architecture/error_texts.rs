//! The list of error texts in `docs/errors.md`. It is generated from the errors of the crates, with their comments.
//!
//! `OCI_RS_WRITE_DOCS=1 cargo test --workspace --test architecture error_texts` rewrites it.

use fixtures::documents::{check, wrapped};

use crate::{
    quotes::joined,
    sources::{root, sources},
};

/// The sections, each with the crates that define its errors.
const SECTIONS: [(&str, &[&str]); 6] = [
    ("Tasks and commands", &["driver"]),
    ("Images", &["image-store", "layer", "lazy"]),
    ("Containers", &["runtime"]),
    ("Networks", &["network", "firewall"]),
    ("System call filters", &["seccomp"]),
    ("Devices", &["cdi"]),
];

/// An error of a source.
#[derive(Debug, PartialEq)]
struct ErrorText {
    /// The text, with `…` for names and numbers.
    text: String,
    /// The comment of the error.
    meaning: String,
}

/// The errors of a source. Texts that are only another error's text are left out.
fn errors(source: &str) -> Vec<ErrorText> {
    let source = joined(source);
    let mut found = Vec::new();
    let mut parts = source.split("#[error(");
    let mut before = parts.next().unwrap_or_default();
    for part in parts {
        let above = before.trim_end().lines().rev().map(str::trim);
        let comment = above.skip_while(|line| line.starts_with("#[")).map_while(|line| line.strip_prefix("///"));
        let lines: Vec<&str> = comment.collect();
        let meaning: String = lines.into_iter().rev().collect();
        let text = literal(part).map(|text| of_format(&text)).unwrap_or_default();
        if text.chars().any(char::is_alphabetic) {
            found.push(ErrorText { text, meaning: meaning.trim().to_owned() });
        }
        before = part;
    }
    found
}

/// The first literal of an attribute; `None` if the attribute has none.
fn literal(attribute: &str) -> Option<String> {
    let mut letters = attribute.trim_start().strip_prefix('"')?.chars();
    let mut text = String::new();
    loop {
        match letters.next()? {
            '"' => return Some(text),
            '\\' => text.push(letters.next()?),
            letter => text.push(letter),
        }
    }
}

/// A format string as a reader knows it.
fn of_format(format: &str) -> String {
    let format = format.replace("{{", "\u{1}").replace("}}", "\u{2}");
    let mut parts = format.split('{');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push('…');
        text.push_str(part.split_once('}').map_or("", |(_, rest)| rest));
    }
    text.replace('\u{1}', "{").replace('\u{2}', "}")
}

/// A list item in lines that are not too wide.
fn item(ErrorText { text, meaning }: &ErrorText) -> String {
    // A text that begins or ends with a backquote needs a space.
    let quoted = match text {
        text if text.starts_with('`') || text.ends_with('`') => format!("`` {text} ``"),
        text if text.contains('`') => format!("``{text}``"),
        text => format!("`{text}`"),
    };
    let explained = if meaning.is_empty() { String::new() } else { format!(": {meaning}") };
    wrapped("  ", &format!("- {quoted}{explained}"))
}

fn list() -> String {
    let mut list = String::new();
    for (title, crates) in SECTIONS {
        let files = crates.iter().flat_map(|name| sources(&root().join(name).join("src")));
        let mut errors: Vec<ErrorText> = files.flat_map(|(_, text)| errors(&text)).collect();
        errors.sort_by(|one, other| one.text.cmp(&other.text));
        errors.dedup();
        assert!(!errors.is_empty(), "{title}");
        list += &format!("\n## {title}\n\n{}", errors.iter().map(item).collect::<String>());
    }
    list + "\n"
}

#[test]
fn the_document_lists_the_error_texts() {
    check("errors.md", &[("errors", list())]);
}

#[test]
fn error_texts_are_read_with_their_comments() {
    let source = "/// First.\n/// More.\n#[error(\"a {b} \\\"c\\\"\")]\nX,\n/// Other.\n#[error(\"{0}\")]\nY,\n\
        /// Long.\n#[derive(Debug)]\n#[error(\n    \"d \\\n     `{{ e }}` {f:?}\"\n)]\nZ,\n#[error(transparent)]\nW,";
    let error = |text: &str, meaning: &str| ErrorText { text: text.to_owned(), meaning: meaning.to_owned() };
    assert_eq!(errors(source), [error("a … \"c\"", "First. More."), error("d `{ e }` …", "Long.")]);
    assert_eq!(item(&error("d `e`", "Long.")), "- `` d `e` ``: Long.\n");
    let wide = item(&error(&"x ".repeat(80), "End."));
    assert!(wide.lines().count() == 2 && wide.lines().all(|line| line.chars().count() <= 120), "{wide}");
}
