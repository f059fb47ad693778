//! The sources that the rules read.

use std::{
    fs,
    path::{Path, PathBuf},
};

use fixtures::must::Must;

/// The workspace's directory.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().must("the workspace's directory").to_owned()
}

/// Every Rust file below a directory: its path relative to that directory, and its text.
pub(crate) fn sources(directory: &Path) -> Vec<(String, String)> {
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
    found.sort();
    found
}
