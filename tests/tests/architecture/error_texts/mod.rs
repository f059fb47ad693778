//! The list of error texts in `docs/errors.md`. It is generated from the code: from the attributes `#[error("…")]` with
//! their comments, and from the places that build other errors.
//!
//! `OCI_RS_WRITE_DOCS=1 cargo test --workspace --test architecture error_texts` rewrites it.

mod contents;

use std::{collections::BTreeSet, sync::LazyLock};

use fixtures::{
    documents::{check, wrapped},
    must::Must,
};

use self::contents::{BUILDERS, CARRIERS, KINDS, PASSED, SECTIONS, Section};
use crate::{
    built::{Built, built, of_format},
    crates,
    quotes::joined,
    sources::{root, sources},
};

/// An error of a source.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ErrorText {
    /// The text, with `…` for names and numbers.
    text: String,
    /// The comment of the error, or the remedy.
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

/// A text as code.
fn quoted(text: &str) -> String {
    // A text that begins or ends with a backquote needs a space.
    match text {
        text if text.starts_with('`') || text.ends_with('`') => format!("`` {text} ``"),
        text if text.contains('`') => format!("``{text}``"),
        text => format!("`{text}`"),
    }
}

/// A list item in lines that are not too wide.
fn item(ErrorText { text, meaning }: &ErrorText) -> String {
    let explained = if meaning.is_empty() { String::new() } else { format!(": {meaning}") };
    wrapped("  ", &format!("- {}{explained}", quoted(text)))
}

/// All errors that sources build.
static BUILT: LazyLock<Vec<Built>> = LazyLock::new(|| {
    let is_of_product =
        |path: &str| !path.starts_with("tests/") && !path.contains("/tests/") && !path.ends_with("tests.rs");
    let mut files = Vec::new();
    for name in BUILDERS {
        for (path, text) in sources(&root().join(name).join("src")).into_iter().filter(|(path, _)| is_of_product(path))
        {
            files.push((format!("{name}/src/{path}"), syn::parse_file(&text).must(&path)));
        }
    }
    built(&files, &KINDS)
});

/// What the text of an error is that cannot be read where it is built.
fn passed(error: &Built) -> Option<&'static str> {
    let is_it = |(file, function, _): &&(&str, &str, &str)| error.file == *file && error.function == *function;
    PASSED.iter().find(is_it).map(|(_, _, meaning)| *meaning)
}

/// Whether a text has words.
fn is_read(text: &str) -> bool {
    text.chars().any(char::is_alphabetic)
}

/// The texts of an error that a source builds.
fn texts(error: &Built) -> Vec<ErrorText> {
    let fields = error.shown();
    let none = BTreeSet::from([String::new()]);
    let (subjects, problems, remedies) = match fields.as_slice() {
        [subjects, problems, remedies] => (subjects, problems, remedies),
        [subjects, problems] => (subjects, problems, &none),
        texts => {
            let texts = texts.iter().flatten().filter(|text| is_read(text)).cloned();
            return texts.map(|text| ErrorText { text, meaning: String::new() }).collect();
        }
    };
    let meaning = |texts: &[&String]| {
        let is_read = texts.iter().all(|text| text.is_empty() || is_read(text));
        passed(error).filter(|_| !is_read).map(str::to_owned)
    };
    let mut found = Vec::new();
    for (subject, problem) in subjects.iter().flat_map(|subject| problems.iter().map(move |problem| (subject, problem)))
    {
        // The path of an option's block is left out.
        let text = format!("{}: {problem}", subject.trim_start_matches("…."));
        if error.kind == "Finding" {
            let remedies: Vec<String> =
                remedies.iter().filter(|text| !text.is_empty()).map(|text| quoted(text)).collect();
            let remedy = (!remedies.is_empty()).then(|| format!("Remedy: {}", remedies.join(" or ")));
            let meaning = meaning(&[problem]).into_iter().chain(remedy).collect::<Vec<_>>().join(" ");
            found.push(ErrorText { text, meaning });
            continue;
        }
        for remedy in remedies {
            let text = if remedy.is_empty() { text.clone() } else { format!("{text} ({remedy})") };
            found.push(ErrorText { text, meaning: meaning(&[problem, remedy]).unwrap_or_default() });
        }
    }
    found.retain(|error| is_read(&error.text));
    found
}

/// The section of an error that a source builds.
fn section(error: &Built) -> Option<&'static str> {
    let is_its = |(kind, path): &(&str, &str)| error.kind == *kind && error.file.starts_with(path);
    SECTIONS.iter().find(|section| section.built.iter().any(is_its)).map(|section| section.title)
}

fn list() -> String {
    let mut list = String::new();
    for Section { title, crates, .. } in &SECTIONS {
        let files = crates.iter().flat_map(|name| sources(&root().join(name).join("src")));
        let mut found: BTreeSet<ErrorText> = files.flat_map(|(_, text)| errors(&text)).collect();
        found.extend(BUILT.iter().filter(|error| section(error) == Some(title)).flat_map(texts));
        assert!(!found.is_empty(), "{title}");
        list += &format!("\n## {title}\n\n{}", found.iter().map(item).collect::<String>());
    }
    list + "\n"
}

#[test]
fn the_document_lists_the_error_texts() {
    check("errors.md", &[("errors", list())]);
}

#[test]
fn each_error_has_a_section_and_a_meaning() {
    let (mut missing, mut unexplained) = (Vec::new(), Vec::new());
    for name in crates() {
        for (path, text) in sources(&root().join(&name).join("src")) {
            let errors = errors(&text);
            let has_section = SECTIONS.iter().any(|section| section.crates.contains(&name.as_str()));
            missing.extend((!has_section && !errors.is_empty()).then(|| format!("{name}/src/{path}")));
            unexplained.extend(errors.into_iter().filter(|error| error.meaning.is_empty()).map(|error| error.text));
        }
    }
    assert!(missing.is_empty(), "the crates of these sources are in no section of SECTIONS: {missing:#?}");
    assert!(unexplained.is_empty(), "these errors need a comment: what happened, or what to do: {unexplained:#?}");
}

#[test]
fn each_error_that_code_builds_can_be_read() {
    let unused = KINDS.iter().filter(|kind| BUILT.iter().all(|error| error.kind != kind.name));
    assert_eq!(unused.map(|kind| kind.name).collect::<Vec<_>>(), Vec::<&str>::new(), "no source builds these errors");
    let lost: Vec<_> = BUILT.iter().filter(|error| section(error).is_none()).collect();
    assert!(lost.is_empty(), "no section of SECTIONS has these errors: {lost:#?}");
    let mut unread = BTreeSet::new();
    let mut passed_on = BTreeSet::new();
    for error in BUILT.iter() {
        let shown = error.shown();
        let texts = shown.iter().skip(usize::from(shown.len() > 1)).flatten();
        for text in texts.filter(|text| !text.is_empty() && !is_read(text)) {
            match passed(error) {
                Some(_) => passed_on.insert((error.file.as_str(), error.function.as_str())),
                None if CARRIERS.contains(&error.kind) => false,
                None => unread.insert(format!("{}: {}: {text}", error.file, error.function)),
            };
        }
    }
    assert!(
        unread.is_empty(),
        "the list cannot tell the texts of these errors: write them where the error is built, or add the function to \
         PASSED: {unread:#?}"
    );
    let gone = PASSED.iter().filter(|(file, function, _)| !passed_on.contains(&(*file, *function)));
    assert_eq!(gone.collect::<Vec<_>>(), Vec::<&(&str, &str, &str)>::new(), "PASSED has functions that need no entry");
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
