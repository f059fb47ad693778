//! The log of the driver has the lines of all crates of this workspace: `OWN_CRATES` in `hclog` names each that logs.

use std::{collections::BTreeSet, fs};

use fixtures::must::Must;

use crate::{
    dependencies,
    sources::{root, sources},
    words,
};

/// A member and all members that it depends on, by their directories.
fn with_dependencies(member: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut open = vec![member.to_owned()];
    while let Some(next) = open.pop() {
        let known = dependencies(&next);
        if found.insert(next) {
            open.extend(known.iter().filter_map(|name| name.strip_prefix("oci-rs-")).map(str::to_owned));
        }
    }
    found
}

/// The name of a member in code: that of its library, or that of its program.
fn name_in_code(member: &str) -> String {
    let manifest = fs::read_to_string(root().join(member).join("Cargo.toml")).must("a manifest");
    let target = manifest.split_once("[lib]").or_else(|| manifest.split_once("[[bin]]"));
    let (_, target) = target.must("a library or a program");
    let name = target.lines().find_map(|line| line.strip_prefix("name = ")).must("its name");
    name.trim_matches('"').replace('-', "_")
}

#[test]
fn the_log_keeps_the_lines_of_each_crate_that_logs() {
    let source = fs::read_to_string(root().join("driver/src/hclog.rs")).must("the source of the log");
    let (_, list) = source.split_once("const OWN_CRATES").must("the list");
    let (list, _) = list.split_once("];").must("its end");
    let listed: BTreeSet<String> = list.split('"').skip(1).step_by(2).map(str::to_owned).collect();
    let logs = |member: &str| {
        let files = sources(&root().join(member).join("src"));
        files.iter().any(|(_, text)| words(text).contains("tracing"))
    };
    let members = with_dependencies("driver");
    let logging: BTreeSet<String> =
        members.iter().filter(|member| logs(member)).map(|member| name_in_code(member)).collect();
    assert!(logging.contains("oci_rs") && logging.contains("image_store"), "{logging:?}");
    let missing: Vec<&String> = logging.difference(&listed).collect();
    assert!(missing.is_empty(), "driver/src/hclog.rs: OWN_CRATES lacks {missing:?}");
}
