//! The arrows of `docs/architecture.md`, held by reading the sources: who may know whom.

mod build_script;
mod built;
mod document;
mod error_texts;
mod links;
mod modules;
mod own_crates;
mod quotes;
mod sources;

use std::{collections::BTreeSet, fs};

use fixtures::must::Must;

use crate::{
    modules::Graph,
    sources::{root, sources},
};

/// Names of the crates in the sections of a manifest that become part of the crate.
fn dependencies(member: &str) -> BTreeSet<String> {
    let path = root().join(member).join("Cargo.toml");
    let text = fs::read_to_string(&path).must(&format!("read {}", path.display()));
    let mut names = BTreeSet::new();
    let mut inside = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            inside = line.ends_with("dependencies]") && !line.contains("dev-dependencies");
        } else if inside && let Some((name, _)) = line.split_once(['=', '.']) {
            names.insert(name.trim().to_owned());
        }
    }
    names
}

/// The code of a file as words, without comments and string literals.
fn words(text: &str) -> BTreeSet<String> {
    let mut words = BTreeSet::new();
    for line in text.lines() {
        let mut code = String::new();
        let mut quoted = false;
        let mut previous = ' ';
        for (position, letter) in line.char_indices() {
            if !quoted && line[position..].starts_with("//") {
                break;
            }
            if letter == '"' && previous != '\\' && previous != '\'' {
                quoted = !quoted;
            } else if !quoted {
                code.push(letter);
            }
            previous = letter;
        }
        words.extend(
            code.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).map(str::to_owned),
        );
    }
    words
}

/// Files below `directory` that use `word` although only paths that begin with one of `allowed` may.
fn strangers(directory: &str, word: &str, allowed: &[&str]) -> Vec<String> {
    let files = sources(&root().join(directory));
    let may = |name: &str| allowed.iter().any(|prefix| name.starts_with(prefix));
    let uses = |text: &str| words(text).contains(word);
    files
        .into_iter()
        .filter(|(name, text)| !may(name) && uses(text))
        .map(|(name, _)| format!("{directory}/{name}"))
        .collect()
}

#[test]
fn crates_know_only_what_they_may() {
    let ours = [
        "oci-rs-layer",
        "oci-rs-lazy",
        "oci-rs-proto",
        "oci-rs-image-store",
        "oci-rs-firewall",
        "oci-rs-network",
        "oci-rs-runtime",
        "oci-rs-seccomp",
        "oci-rs-log-drivers",
        "oci-rs-tls",
        "oci-rs-fixtures",
        "oci-rs-tests",
        "oci-rs",
        "oci-rs-e2e",
        "oci-rs-parity",
    ];
    let of_ours = |member: &str| -> Vec<String> {
        dependencies(member).into_iter().filter(|name| ours.contains(&name.as_str())).collect()
    };
    // Every crate may know `oci-rs-failpoint` and `oci-rs-host`, which know no crate of ours.
    for member in ["failpoint", "host"] {
        assert!(dependencies(member).iter().all(|name| !name.starts_with("oci-rs")), "{member}");
    }
    assert_eq!(of_ours("layer"), Vec::<String>::new());
    assert_eq!(of_ours("lazy"), ["oci-rs-layer"]);
    assert_eq!(of_ours("proto"), Vec::<String>::new());
    assert_eq!(of_ours("image-store"), ["oci-rs-layer", "oci-rs-lazy", "oci-rs-tls"]);
    assert_eq!(of_ours("seccomp"), Vec::<String>::new());
    assert_eq!(of_ours("tls"), Vec::<String>::new());
    assert_eq!(of_ours("log-drivers"), ["oci-rs-tls"]);
    assert_eq!(of_ours("runtime"), ["oci-rs-log-drivers", "oci-rs-seccomp"]);
    assert_eq!(of_ours("oci-runtime"), ["oci-rs-runtime"]);
    assert_eq!(of_ours("firewall"), Vec::<String>::new());
    assert_eq!(of_ours("network"), ["oci-rs-firewall"]);
    let parts = ["oci-rs-image-store", "oci-rs-log-drivers", "oci-rs-network", "oci-rs-proto", "oci-rs-runtime"];
    assert_eq!(of_ours("driver"), parts);
    // The kit must not share the driver's mistakes.
    assert_eq!(of_ours("tests"), ["oci-rs-fixtures", "oci-rs-proto"]);
    assert_eq!(of_ours("parity"), ["oci-rs-e2e", "oci-rs-fixtures"]);
    assert_eq!(of_ours("escapes"), Vec::<String>::new());
    assert_eq!(of_ours("fixtures"), Vec::<String>::new());
    for member in ["host", "layer", "lazy", "image-store", "runtime", "firewall", "network"] {
        let known = dependencies(member);
        for stranger in ["tonic", "prost", "tonic-prost"] {
            assert!(!known.contains(stranger), "{member} knows {stranger}");
        }
    }
    assert!(!dependencies("image-store").contains("libcontainer") && !dependencies("driver").contains("libcontainer"));
    assert!(!dependencies("runtime").contains("tokio"), "the monitor has no async runtime");
}

/// The members of the workspace that have a `src` directory.
fn crates() -> Vec<String> {
    let entries = fs::read_dir(root()).must("list the workspace").flatten();
    let is_crate = |path: &std::path::Path| path.join("Cargo.toml").is_file() && path.join("src").is_dir();
    let mut names: Vec<String> = entries
        .filter(|entry| is_crate(&entry.path()))
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert!(names.iter().any(|name| name == "driver"), "{names:?}");
    names
}

#[test]
fn the_modules_of_each_crate_form_no_cycle() {
    let mut cycles = String::new();
    for name in crates() {
        let found = Graph::of_crate(&root().join(&name).join("src")).cycles();
        if !found.is_empty() {
            cycles += &format!("cycle in crate {name}; move the item to the module that both may know:\n{found}");
        }
    }
    assert!(cycles.is_empty(), "{cycles}");
}

/// The sources of an example crate.
fn example(files: &[(&str, &str)]) -> Graph {
    Graph::of_sources(files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect())
}

#[test]
fn a_cycle_is_found_through_imports_paths_macros_and_re_exports() {
    let directly = [("a.rs", "use crate::b::B; pub struct A;"), ("b.rs", "pub struct B; fn f() { crate::a::f(); }")];
    let in_macro = [("a.rs", "use super::b::B;"), ("b.rs", "pub struct B; fn f() { println!(\"{}\", crate::a::X); }")];
    let facade = [
        ("lib.rs", "mod a; mod b; pub use b::B;"),
        ("a.rs", "use crate::B; pub struct A;"),
        ("b/mod.rs", "mod c; pub use c::C as B;"),
        ("b/c.rs", "use crate::a::A; pub struct C;"),
    ];
    let parent = [("a/mod.rs", "mod b; use b::B; pub struct A;"), ("a/b.rs", "use super::A; pub struct B;")];
    for files in [&directly[..], &in_macro, &facade, &parent] {
        assert!(!example(files).cycles().is_empty(), "{files:?}");
    }
}

#[test]
fn facades_and_tests_make_no_cycle() {
    let facade = [
        ("lib.rs", "mod a; pub use a::{B, C};"),
        ("a/mod.rs", "mod b; mod c; pub use b::B; pub use c::C;"),
        ("a/b.rs", "use super::C; pub struct B;"),
        (
            "a/c.rs",
            "use std::fmt; pub struct C; impl fmt::Debug for C {} #[cfg(test)] mod tests { use super::super::B; }",
        ),
    ];
    assert_eq!(example(&facade).cycles(), "");
}

#[test]
fn only_the_wire_module_of_the_driver_knows_nomads_messages_and_tonic() {
    for word in ["proto", "tonic", "prost", "tonic_types", "prost_types"] {
        assert_eq!(strangers("driver/src", word, &["rpc/"]), Vec::<String>::new(), "{word}");
    }
}

#[test]
fn only_the_engine_knows_libcontainer() {
    assert_eq!(strangers("runtime/src", "libcontainer", &["engine/", "engine.rs"]), Vec::<String>::new());
}

#[test]
fn unsafe_code_stands_in_modules_named_sys() {
    for directory in [
        "proto/src",
        "driver/src",
        "host/src",
        "layer/src",
        "lazy/src",
        "image-store/src",
        "runtime/src",
        "network/src",
        "seccomp/src",
        "log-drivers/src",
        "tls/src",
        "fixtures/src",
        "tests/src",
        "tests/tests",
        "e2e/src",
        "parity/src",
    ] {
        let files = sources(&root().join(directory));
        let outside: Vec<String> = files
            .into_iter()
            .filter(|(name, text)| {
                !name.split('/').any(|part| part == "sys" || part == "sys.rs") && words(text).contains("unsafe")
            })
            .map(|(name, _)| format!("{directory}/{name}"))
            .collect();
        assert_eq!(outside, Vec::<String>::new());
    }
}

/// The workspace is the same wherever it lies.
#[test]
fn no_source_names_a_path_of_one_machine() {
    let home = root();
    let home = home.to_string_lossy();
    let mut guilty = Vec::new();
    for directory in [
        "proto",
        "driver",
        "host",
        "layer",
        "lazy",
        "image-store",
        "runtime",
        "firewall",
        "network",
        "seccomp",
        "log-drivers",
        "tls",
        "fixtures",
        "tests",
        "e2e",
        "parity",
        "bench",
    ] {
        for (name, text) in sources(&root().join(directory)) {
            let build_output = name.starts_with("target/");
            if !build_output && (text.contains(&*home) || text.contains(concat!("\"/wo", "rk"))) {
                guilty.push(format!("{directory}/{name}"));
            }
        }
    }
    assert_eq!(guilty, Vec::<String>::new());
}

/// A test of this file's own eyes.
#[test]
fn words_are_code_and_nothing_else() {
    let text = "use tonic::Status; // prost\nlet text = \"rustls \\\" still\"; let after = '\"'; hyper();";
    let words = words(text);
    for word in ["tonic", "Status", "after", "hyper"] {
        assert!(words.contains(word), "{word} in {words:?}");
    }
    for word in ["prost", "rustls", "still"] {
        assert!(!words.contains(word), "{word} in {words:?}");
    }
}

/// Words that make a reader guess who acts, and the term that the field does not use.
const UNCLEAR: [&str; 8] = ["nobody", "somebody", "anybody", "everybody", "whoever", "whomever", "whatever", "folder"];

/// The unclear words of a comment line. Text between backquotes is a name.
fn unclear_words(line: &str) -> Vec<String> {
    let Some(comment) = line.trim_start().strip_prefix("//") else { return Vec::new() };
    let text: String = comment.split('`').step_by(2).collect::<Vec<_>>().join(" ").to_lowercase();
    let words = text.split(|c: char| !c.is_alphabetic());
    words.filter(|word| UNCLEAR.contains(word)).map(str::to_owned).collect()
}

#[test]
fn comments_name_who_acts() {
    let mut guilty = Vec::new();
    for name in crates() {
        for (file, text) in sources(&root().join(&name)) {
            for (number, line) in text.lines().enumerate() {
                let words = unclear_words(line);
                if !words.is_empty() {
                    guilty.push(format!("{name}/{file}:{}: {}", number + 1, words.join(", ")));
                }
            }
        }
    }
    assert_eq!(guilty, Vec::<String>::new(), "name the process, the caller or the file instead");
}

#[test]
fn unclear_words_are_found_in_comments_only() {
    assert_eq!(unclear_words("    /// Whoever reads it, and nobody else."), ["whoever", "nobody"]);
    assert_eq!(unclear_words("//! The user `nobody`."), Vec::<String>::new());
    assert_eq!(unclear_words("let user = \"nobody\"; // fine"), Vec::<String>::new());
}
