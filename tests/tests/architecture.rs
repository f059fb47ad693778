//! The arrows of `docs/architecture.md`, held by reading the sources: who may know whom.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use kit::must::Must;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().must("the workspace's directory").to_owned()
}

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

/// Every Rust file below a directory, with its path relative to that directory.
fn sources(directory: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next).must(&format!("list {}", next.display())).flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(directory).must("a path below the directory");
                found.push((name.to_string_lossy().into_owned(), fs::read_to_string(&path).must("a source file")));
            }
        }
    }
    assert!(!found.is_empty(), "no sources below {}", directory.display());
    found
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
        "oci-rs-proto",
        "oci-rs-image-store",
        "oci-rs-network",
        "oci-rs-runtime",
        "oci-rs-tests",
        "oci-rs",
        "oci-rs-e2e",
    ];
    let of_ours = |member: &str| -> Vec<String> {
        dependencies(member).into_iter().filter(|name| ours.contains(&name.as_str())).collect()
    };
    // Everybody may know `oci-rs-failpoint`, which knows nobody.
    assert_eq!(of_ours("failpoint"), Vec::<String>::new());
    assert_eq!(of_ours("proto"), Vec::<String>::new());
    assert_eq!(of_ours("image-store"), Vec::<String>::new());
    assert_eq!(of_ours("runtime"), Vec::<String>::new());
    assert_eq!(of_ours("network"), Vec::<String>::new());
    assert_eq!(of_ours("driver"), ["oci-rs-image-store", "oci-rs-network", "oci-rs-proto", "oci-rs-runtime"]);
    // The kit must not share the driver's mistakes.
    assert_eq!(of_ours("tests"), ["oci-rs-proto"]);
    for member in ["image-store", "runtime", "network"] {
        let known = dependencies(member);
        for stranger in ["tonic", "prost", "tonic-prost"] {
            assert!(!known.contains(stranger), "{member} knows {stranger}");
        }
    }
    assert!(!dependencies("image-store").contains("libcontainer") && !dependencies("driver").contains("libcontainer"));
    assert!(!dependencies("runtime").contains("tokio"), "the monitor has no async runtime");
}

#[test]
fn only_the_wire_modules_of_the_driver_know_tonic() {
    assert_eq!(strangers("driver/src", "tonic", &["rpc/", "rpc.rs", "plugin/", "plugin.rs"]), Vec::<String>::new());
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
        "image-store/src",
        "runtime/src",
        "network/src",
        "tests/src",
        "tests/tests",
        "e2e/src",
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
    for directory in ["proto", "driver", "image-store", "runtime", "network", "tests", "e2e", "bench"] {
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
