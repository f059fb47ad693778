//! Lexical normalization of paths. Nothing here looks at a file system.

use std::path::{Component, Path, PathBuf};

/// A path in a container without `.`, `..` and doubled slashes. The result is absolute.
pub fn normalize_container_path(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// A path on the host without `.` and `..`. The result is absolute. Links are not followed.
pub fn normalize_host_path(path: &Path) -> PathBuf {
    let mut normalized = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::Normal(part) => normalized.push(part),
            Component::ParentDir => {
                normalized.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    normalized
}
