//! The tables of `docs/configuration.md`, made from the tables of options, so that neither can say what the other does not.
//!
//! `OCI_RS_WRITE_DOCS=1 cargo test -p oci-rs reference` rewrites them.

use std::{fmt::Write, fs, path::Path};

use super::{
    option::{DefaultValue, OptionSpec, OptionType, Support},
    plugin_options::PLUGIN,
    task_options::TASK,
};

fn table(options: &[OptionSpec]) -> String {
    let mut text = String::from("| option | type | default | here | help |\n|---|---|---|---|---|\n");
    rows(&mut text, "", options);
    text
}

fn rows(text: &mut String, path: &str, options: &[OptionSpec]) {
    let mut options: Vec<&OptionSpec> = options.iter().collect();
    options.sort_by_key(|option| option.name);
    for option in options {
        let name = format!("{path}{}", option.name);
        let (kind, nested) = kind(option.kind);
        let default = match option.default {
            DefaultValue::Required => "required".to_owned(),
            DefaultValue::Literal(literal) => format!("`{literal}`"),
            DefaultValue::Words(words) => words.to_owned(),
        };
        let (support, remedy) = match option.support {
            Support::Honoured => ("works", String::new()),
            Support::Partial => ("works in part", String::new()),
            Support::Ignored => ("no effect", String::new()),
            Support::Refused(remedy) => ("**error**", format!(". Instead: {remedy}")),
        };
        writeln!(text, "| `{name}` | {kind} | {default} | {support} | {}{remedy} |", option.help).unwrap();
        // Its options are those of `mount`, which stand above.
        if name != "mounts" {
            rows(text, &format!("{name}."), nested);
        }
    }
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
    check(PLUGIN);
    check(TASK);
}
