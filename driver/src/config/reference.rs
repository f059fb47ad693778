//! The tables of `docs/configuration.md`, made from the tables of options, so that neither can say what the other does not.
//!
//! `OCI_RS_WRITE_DOCS=1 cargo test -p oci-rs reference` rewrites them.

use std::{fmt::Write, fs, path::Path};

use super::{
    option::{Default, Fate, Kind, Opt},
    plugin_options::PLUGIN,
    task_options::TASK,
};

fn table(options: &[Opt]) -> String {
    let mut text = String::from("| option | type | default | here | meaning |\n|---|---|---|---|---|\n");
    rows(&mut text, "", options);
    text
}

fn rows(text: &mut String, path: &str, options: &[Opt]) {
    let mut options: Vec<&Opt> = options.iter().collect();
    options.sort_by_key(|option| option.name);
    for option in options {
        let name = format!("{path}{}", option.name);
        let (kind, nested) = kind(option.kind);
        let default = match option.default {
            Default::Required => "required".to_owned(),
            Default::Literal(literal) => format!("`{literal}`"),
            Default::Words(words) => words.to_owned(),
        };
        let (fate, remedy) = match option.fate {
            Fate::Honoured => ("works", String::new()),
            Fate::Partly => ("works in part", String::new()),
            Fate::Ignored => ("no effect", String::new()),
            Fate::Refused(remedy) => ("**error**", format!(". Instead: {remedy}")),
        };
        writeln!(text, "| `{name}` | {kind} | {default} | {fate} | {}{remedy} |", option.meaning).unwrap();
        // Its options are those of `mount`, which stand above.
        if name != "mounts" {
            rows(text, &format!("{name}."), nested);
        }
    }
}

fn kind(kind: Kind) -> (&'static str, &'static [Opt]) {
    match kind {
        Kind::String => ("string", &[]),
        Kind::Bool => ("bool", &[]),
        Kind::Number => ("number", &[]),
        Kind::Strings => ("list(string)", &[]),
        Kind::StringMaps => ("map of strings", &[]),
        Kind::NumberMaps => ("map of numbers", &[]),
        Kind::StringAttrs => ("block of strings", &[]),
        Kind::Block(options) => ("block", options),
        Kind::Blocks(options) => ("repeated block", options),
        Kind::Labelled(_, options) => ("repeated block with a label", options),
    }
}

#[test]
fn the_documents_tables_are_those_of_the_schema() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/configuration.md");
    let written = fs::read_to_string(&path).unwrap();
    let mut expected = written.clone();
    for (name, options) in [("plugin", PLUGIN), ("task", TASK)] {
        let (begin, end) = (format!("<!-- {name} options: begin -->\n"), format!("<!-- {name} options: end -->"));
        let from = expected.find(&begin).unwrap() + begin.len();
        let to = expected.find(&end).unwrap();
        expected.replace_range(from..to, &table(options));
    }
    if std::env::var_os("OCI_RS_WRITE_DOCS").is_some() {
        fs::write(&path, &expected).unwrap();
        return;
    }
    assert!(written == expected, "docs/configuration.md is out of date: run this test with OCI_RS_WRITE_DOCS=1");
}

#[test]
fn every_option_is_described() {
    fn check(options: &[Opt]) {
        for option in options {
            assert!(!option.meaning.is_empty() && !option.meaning.contains(['\n', '|']), "{}", option.name);
            assert!(
                options.iter().filter(|other| other.name == option.name).count() == 1,
                "{} occurs twice",
                option.name
            );
            check(kind(option.kind).1);
        }
    }
    check(PLUGIN);
    check(TASK);
}
