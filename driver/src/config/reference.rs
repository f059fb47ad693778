//! The lists of options in `docs/configuration.md`. They are generated from the schema, so that both always agree.
//!
//! `OCI_RS_WRITE_DOCS=1 cargo test -p oci-rs reference` rewrites the lists.

use std::{fs, path::Path};

use super::{
    PLUGIN_OPTIONS, TASK_OPTIONS,
    option::{DefaultValue, OptionSpec, OptionType, Support},
};

/// The widest line of the document.
const COLUMNS: usize = 120;

/// One list item per option, in the order of their names. The options of a block follow it.
fn list(path: &str, options: &[OptionSpec]) -> String {
    let mut options: Vec<&OptionSpec> = options.iter().collect();
    options.sort_by_key(|option| option.name);
    options.into_iter().map(|option| item(path, option)).collect()
}

fn item(path: &str, option: &OptionSpec) -> String {
    let name = format!("{path}{}", option.name);
    let (kind, nested) = kind(option.kind);
    let default = match option.default {
        DefaultValue::Required => " Must be set.".to_owned(),
        DefaultValue::Words("") => String::new(),
        // With spaces, so that a long list can be wrapped.
        DefaultValue::Literal(literal) => format!(" Default: `{}`.", literal.replace("\",\"", "\", \"")),
        DefaultValue::Words(words) => format!(" Default: {words}."),
    };
    let (support, remedy) = match option.support {
        Support::Honoured => ("works", String::new()),
        Support::Partial => ("works in part", String::new()),
        Support::Ignored => ("no effect", String::new()),
        Support::Refused(remedy) => ("**error**", format!(" Instead: {remedy}.")),
    };
    let help = sentence(option.help);
    let text = format!("- **`{name}`** ({kind}, {support}). {help}{remedy}{default}");
    // The options of `mounts` are those of `mount`, which has been listed before.
    let nested = if name == "mounts" { String::new() } else { list(&format!("{name}."), nested) };
    wrapped(&text) + &nested
}

/// The text with a capital letter at its start and a full stop at its end.
fn sentence(text: &str) -> String {
    let mut rest = text.chars();
    let first = rest.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    let stop = if text.ends_with('.') { "" } else { "." };
    format!("{first}{}{stop}", rest.as_str())
}

/// A list item in lines of at most [`COLUMNS`] characters.
fn wrapped(text: &str) -> String {
    let mut lines = String::new();
    let mut width = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        if width == 0 {
            width = length;
        } else if width + 1 + length <= COLUMNS {
            lines.push(' ');
            width += 1 + length;
        } else {
            lines.push_str("\n  ");
            width = 2 + length;
        }
        lines.push_str(word);
    }
    lines + "\n"
}

fn kind(kind: OptionType) -> (&'static str, &'static [OptionSpec]) {
    match kind {
        OptionType::String => ("string", &[]),
        OptionType::Bool => ("bool", &[]),
        OptionType::Number => ("number", &[]),
        OptionType::Strings => ("list(string)", &[]),
        OptionType::StringMaps => ("map of strings", &[]),
        OptionType::NumberMaps => ("map of numbers", &[]),
        OptionType::StringAttrs => ("block of strings", &[]),
        OptionType::Block(options) => ("block", options),
        OptionType::Blocks(options) => ("repeated block", options),
        OptionType::Labelled(_, options) => ("repeated block with a label", options),
    }
}

#[test]
fn the_document_lists_the_options_of_the_schema() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/configuration.md");
    let written = fs::read_to_string(&path).unwrap();
    let mut expected = written.clone();
    for (name, options) in [("plugin", PLUGIN_OPTIONS), ("task", TASK_OPTIONS)] {
        let (begin, end) = (format!("<!-- {name} options: begin -->\n"), format!("<!-- {name} options: end -->"));
        let from = expected.find(&begin).unwrap() + begin.len();
        let to = expected.find(&end).unwrap();
        expected.replace_range(from..to, &list("", options));
    }
    if std::env::var_os("OCI_RS_WRITE_DOCS").is_some() {
        fs::write(&path, &expected).unwrap();
        return;
    }
    assert!(written == expected, "docs/configuration.md is out of date: run this test with OCI_RS_WRITE_DOCS=1");
}

#[test]
fn every_option_is_described() {
    fn check(options: &[OptionSpec]) {
        for option in options {
            assert!(!option.help.is_empty() && !option.help.contains(['\n', '|']), "{}", option.name);
            assert!(
                options.iter().filter(|other| other.name == option.name).count() == 1,
                "{} occurs twice",
                option.name
            );
            check(kind(option.kind).1);
        }
    }
    check(PLUGIN_OPTIONS);
    check(TASK_OPTIONS);
}
