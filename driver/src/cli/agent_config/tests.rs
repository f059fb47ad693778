//! The expected values are those of Nomad's own HCL library.

use std::{fs, path::Path};

use fixtures::documents;
use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::{
    hcl::{self, path_of},
    read,
};
use crate::{
    cli::failure::Failure,
    config::PluginConfig,
    name::DriverName::{self, Docker, OciRs},
};

const BOTH: [DriverName; 2] = [OciRs, Docker];

#[track_caller]
fn parsed(text: &str) -> Json {
    match hcl::parse(text) {
        Ok(document) => document.value,
        Err(error) => panic!("{text:?}: {error:?}"),
    }
}

#[test]
fn values_are_nomads() {
    for (text, value) in [
        ("\"a\"", json!("a")),
        (r#""\t\"\\\x41\101\u00e4\U0001F600 ä""#, json!("\t\"\\AAä😀 ä")),
        (r#""a ${b "c" {}} \n""#, json!("a ${b \"c\" {}} \n")),
        ("\"${a\nb}\"", json!("${a\nb}")),
        ("12", json!(12)),
        ("-12", json!(-12)),
        ("0x1F", json!(31)),
        ("010", json!(8)),
        ("0", json!(0)),
        ("1.5", json!(1.5)),
        ("1e3", json!(1000.0)),
        ("-2.5e-1", json!(-0.25)),
        ("true", json!(true)),
        ("false", json!(false)),
        ("[]", json!([])),
        ("[1, \"b\", [true,],\n # comment\n {c = 2},]", json!([1, "b", [true], {"c": 2}])),
        ("{ b = 1 c = 2, \"d-e\" = 3\n}", json!({"b": 1, "c": 2, "d-e": 3})),
        ("<<EOF\n b\nc\nEOF\n", json!(" b\nc\n")),
        ("<<EOF\r\nb\r\nEOF\r\n", json!("b\n")),
        ("<<-EOF\n    b\n      c\n    EOF\n", json!("b\n  c\n")),
        ("<<-EOF\n  b\n    EOF\n", json!("  b\n")),
    ] {
        assert_eq!(parsed(&format!("a = {text}")), json!({ "a": value }), "{text}");
    }
}

#[test]
fn blocks_are_as_the_plugin_gets_them() {
    for (text, value) in [
        ("", json!({})),
        ("# a\n// b\n/* c\n * d */ a = 1 # e", json!({"a": 1})),
        ("\"a\" = 1, b = 2\nb = 3", json!({"a": 1, "b": 3})),
        ("a.b-c = 1", json!({"a.b-c": 1})),
        ("a { b = 1 }", json!({"a": {"b": 1}})),
        ("a = { b = 1 }", json!({"a": {"b": 1}})),
        ("a { b = 1 } a { c = 2 } a {}", json!({"a": [{"b": 1}, {"c": 2}, {}]})),
        ("a \"x\" { b = 1 }\na \"y.z:5\" {}", json!({"a": {"x": {"b": 1}, "y.z:5": {}}})),
        ("a x y { b = 1 }", json!({"a": {"x": {"y": {"b": 1}}}})),
        ("\u{feff}a = 1", json!({"a": 1})),
    ] {
        assert_eq!(parsed(text), value, "{text}");
    }
}

#[test]
fn a_syntax_error_has_its_line_and_name() {
    for (text, line, part) in [
        ("a = 1\nb =", 2, "b: expected a value: a text in quotes, a number, true, false, `[` or `{`, found the end"),
        ("a {\n  b = x\n}", 2, "a.b: expected a value: a text in quotes, a number, true, false, `[` or `{`, found `x`"),
        ("a \"b\" {\n c = 1\n", 3, "a[\"b\"]: expected the `}` of the block that begins in line 1, found the end"),
        ("a \"b\" = 1", 1, "a[\"b\"]: expected `{`, because it has a label, found `=`"),
        ("a", 1, "a: expected `=` or `{`, found the end of the file"),
        ("a = [1 2]", 1, "a: expected `,` or `]`, found a number"),
        ("a = [1,\n", 2, "a: expected a value"),
        ("}", 1, "expected a name, found `}`"),
        ("a = 1\n= 2", 2, "expected a name, found `=`"),
        ("a = \"b\nc\"", 1, "the text has no closing quote in its line"),
        ("a = \"\\q\"", 1, "unknown escape sequence"),
        ("a = \"\\U00110000\"", 1, "without a valid character code"),
        ("\na = <<EOF\nb\nEOF", 2, "the heredoc has no line with its mark"),
        ("a = 1.2.3", 1, "this is no number; a text needs quotes"),
        ("a = 10m", 1, "this is no number; a text needs quotes"),
        ("a = 089", 1, "this is no number"),
        ("a = 99999999999999999999", 1, "this is no number"),
        ("/* a\n", 1, "the comment has no `*/`"),
        ("a = (1)", 1, "unexpected character '('"),
        ("a = 1\na \"b\" {}", 2, "a[\"b\"]: is both an attribute and a block with a label"),
    ] {
        let error = hcl::parse(text).expect_err(text);
        assert!(error.line == line && error.problem.contains(part), "{text:?}: {error:?}");
    }
    let deep = "a = ".to_owned() + &"[".repeat(1_000_000);
    assert!(hcl::parse(&deep).expect_err("deep").problem.contains("more than 64 levels"));
}

#[test]
fn names_have_their_lines() {
    let document = hcl::parse("a {\n b = 1\n}\na \"x.y\" {\n b = 2\n}\n").unwrap();
    let line = |path: &str| document.line(path);
    assert_eq!((line("a"), line("a.b"), line("a.b[0].c"), line("a.c")), (Some(4), Some(2), Some(2), Some(4)));
    let labelled = path_of("", &["a".into(), "x.y".into()]);
    assert_eq!((line(&labelled), line(&format!("{labelled}.b")), line("ab")), (Some(4), Some(5), None));
}

proptest! {
    #[test]
    fn no_text_is_a_panic(text in "([a-c\"{}=\\[\\],<E\n\\\\$#/*0-9.x -]|\\PC){0,60}") {
        drop(hcl::parse(&text));
    }

    #[test]
    fn a_written_text_is_read_again(text in "[^$\\x00]{0,20}", number in any::<i64>()) {
        let quoted: String = text.chars().flat_map(|c| match c {
            '"' | '\\' => vec!['\\', c],
            '\n' => vec!['\\', 'n'],
            c => vec![c],
        }).collect();
        prop_assert_eq!(parsed(&format!("a = \"{quoted}\" b = {number}")), json!({"a": text, "b": number}));
    }
}

fn data_dir(result: Result<PluginConfig, Failure>) -> Result<(DriverName, String), String> {
    match result {
        Ok(config) => Ok((config.driver, config.data_dir.display().to_string())),
        Err(Failure::Failed(text)) => Err(text),
        Err(other) => Err(format!("{other:?}")),
    }
}

fn write(directory: &Path, name: &str, text: &str) -> std::path::PathBuf {
    let path = directory.join(name);
    fs::write(&path, text).unwrap();
    path
}

#[test]
fn the_block_is_found_alone_and_in_an_agents_configuration() {
    let directory = tempfile::tempdir().unwrap();
    let block = |name: &str| format!("plugin \"{name}\" {{ config {{ data_dir = \"/{name}\" }} }}\n");
    let found = |text: &str, names: &[DriverName]| data_dir(read(&write(directory.path(), "agent", text), names));
    let own = Ok((OciRs, "/oci-rs".to_owned()));
    let dockers = Ok((Docker, "/docker".to_owned()));
    for text in [
        "data_dir = \"/oci-rs\"",
        &format!("client {{ enabled = true }}\nplugin \"raw_exec\" {{ config {{}} }}\n{}", block("oci-rs")),
        r#"{"data_dir": "/oci-rs"}"#,
        r#"{"plugin": {"oci-rs": {"config": {"data_dir": "/oci-rs"}}}}"#,
        r#" {"client": {}, "plugin": [{"raw_exec": [{}]}, {"oci-rs": [{"config": [{"data_dir": "/oci-rs"}]}]}]}"#,
    ] {
        assert_eq!(found(text, &BOTH), own, "{text}");
    }
    let both = block("docker") + &block("oci-rs");
    assert_eq!((found(&both, &BOTH), found(&both, &[Docker, OciRs])), (own.clone(), dockers.clone()));
    assert_eq!((found(&block("docker"), &BOTH), found(&block("oci-rs"), &[Docker, OciRs])), (dockers, own));
    assert!(found(&block("oci-rs"), &[Docker]).is_err(), "its directories may differ");
    let defaults = data_dir(Ok(PluginConfig::default()));
    assert_eq!(found("plugin \"oci-rs\" { config {} }", &BOTH), defaults);
    for text in ["plugin \"docker\" {}", "plugin \"raw_exec\" { config {} }", r#"{"plugin": {"docker": {}}}"#] {
        let error = found(text, &BOTH).expect_err(text);
        assert!(error.ends_with("agent: holds no plugin \"oci-rs\" or \"docker\" block with a config"), "{error}");
    }
}

#[test]
fn a_directory_is_read_as_an_agent_reads_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let block = |value: &str| format!("plugin \"oci-rs\" {{ config {{ data_dir = \"{value}\" }} }}");
    write(path, "a.hcl", "data_dir = \"/opt/nomad\"");
    let error = data_dir(read(path, &BOTH)).unwrap_err();
    assert!(error.contains("holds no plugin"), "{error}");
    write(path, "b.hcl", &block("/b"));
    write(path, "c.json", r#"{"plugin": {"oci-rs": {"config": {"data_dir": "/c"}}}}"#);
    write(path, "d.hcl", "plugin \"oci-rs\" { config {} }");
    for other in ["e.hcl~", "f.hcl.bak", ".#g.hcl", "h"] {
        write(path, other, "}");
    }
    fs::create_dir(path.join("i.hcl")).unwrap();
    assert_eq!(data_dir(read(path, &BOTH)), Ok((OciRs, "/c".to_owned())));
    let broken = write(path, "j.hcl", "\n}");
    let error = data_dir(read(path, &BOTH)).unwrap_err();
    assert_eq!(error, format!("{}: line 2: expected a name, found `}}`", broken.display()));
}

#[test]
fn an_error_of_the_block_has_file_line_and_option_and_no_value() {
    let directory = tempfile::tempdir().unwrap();
    let agent = concat!(
        "plugin \"oci-rs\" {\n  config {\n    registry \"a.b:5\" {\n      auth {\n",
        "        password = \"hunter2\"\n      }\n    }\n    gc {\n      image_delay = \"soon\"\n    }\n  }\n}\n"
    );
    let path = write(directory.path(), "agent.hcl", agent);
    let error = data_dir(read(&path, &BOTH)).unwrap_err();
    assert!(error.starts_with(&format!("{}: invalid plugin config, 2 errors:", path.display())), "{error}");
    assert!(error.contains("line 4: registry[\"a.b:5\"].auth: needs both username and password"), "{error}");
    assert!(error.contains("line 9: gc.image_delay: \"soon\" is not a duration"), "{error}");
    assert!(!error.contains("hunter2"), "{error}");
    let alone = write(directory.path(), "block.hcl", "client {}");
    let error = data_dir(read(&alone, &BOTH)).unwrap_err();
    assert!(error.contains("line 1: client: is no option") && error.contains("so it was read as one"), "{error}");
}

/// Blocks of an agent in the README and in `docs`. Nomad itself reads those of jobs in the end-to-end tests.
#[test]
fn the_plugin_blocks_of_the_documents_are_accepted() {
    let directory = tempfile::tempdir().unwrap();
    let mut count = 0;
    for (document, block) in documents::blocks("hcl") {
        let is_ours = BOTH.iter().any(|name| block.contains(&format!("plugin \"{name}\" {{\n")));
        if is_ours {
            let read = read(&write(directory.path(), "agent.hcl", &block), &BOTH);
            assert!(read.is_ok(), "{document}: {:?}\n{block}", read.err());
            count += 1;
        }
    }
    assert!(count > 10, "only {count} blocks");
}
