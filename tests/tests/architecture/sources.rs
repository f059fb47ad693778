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
    let named = |path: PathBuf| {
        let name = path.strip_prefix(directory).must("a path below the directory");
        (name.to_string_lossy().into_owned(), fs::read_to_string(&path).must("a source file"))
    };
    let found: Vec<_> = files(directory, "rs").into_iter().map(named).collect();
    assert!(!found.is_empty(), "no sources below {}", directory.display());
    found
}

/// The files below a directory whose names end so, in order. Build outputs and hidden directories are left out.
pub(crate) fn files(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next).must(&format!("list {}", next.display())).flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            if path.is_dir() {
                let left_out = name == "target" || name.to_string_lossy().starts_with('.');
                open.extend((!left_out).then_some(path));
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}
