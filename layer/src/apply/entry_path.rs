//! What an entry's name means: a file, a whiteout, an opaque mark, or nothing.
//!
//! Pure. Whiteout names are those of the OCI image specification (`.wh.NAME`, `.wh..wh..opq`).

use crate::{
    error::Problem,
    path::{clean, split},
};

const PREFIX: &[u8] = b".wh.";
const META_PREFIX: &[u8] = b".wh..wh.";
const OPAQUE_MARK: &[u8] = b".wh..wh..opq";

/// What an entry's name means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EntryPath {
    /// The layer's root itself.
    Root,
    /// A file of any kind: its parent's path and its last component.
    File { parent: Vec<u8>, name: Vec<u8> },
    /// The lower layers' file of this name is hidden.
    Whiteout { parent: Vec<u8>, name: Vec<u8> },
    /// The lower layers' content of this directory is hidden.
    Opaque { dir: Vec<u8> },
    /// Bookkeeping of an old storage driver.
    Ignored,
}

/// Whether a component is a whiteout's name, which no file of a layer can have.
pub(crate) fn is_whiteout(component: &[u8]) -> bool {
    component.starts_with(PREFIX)
}

/// Tells what an entry's name means.
pub(crate) fn classify(name: &[u8]) -> Result<EntryPath, Problem> {
    let path = clean(name)?;
    if path.is_empty() {
        return Ok(EntryPath::Root);
    }
    let (parent, last) = split(&path);
    if path == OPAQUE_MARK || last == OPAQUE_MARK {
        check_parent(parent)?;
        return Ok(EntryPath::Opaque { dir: parent.to_vec() });
    }
    if path.split(|byte| *byte == b'/').any(|part| part.starts_with(META_PREFIX)) {
        return Ok(EntryPath::Ignored);
    }
    check_parent(parent)?;
    match last.strip_prefix(PREFIX) {
        Some(b"" | b"." | b"..") => Err("a whiteout without a name".into()),
        Some(hidden) => Ok(EntryPath::Whiteout { parent: parent.to_vec(), name: hidden.to_vec() }),
        None => Ok(EntryPath::File { parent: parent.to_vec(), name: last.to_vec() }),
    }
}

fn check_parent(parent: &[u8]) -> Result<(), Problem> {
    if parent.split(|byte| *byte == b'/').any(|part| part.starts_with(PREFIX)) {
        return Err("it lies inside a whiteout".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(parent: &str, name: &str) -> EntryPath {
        EntryPath::File { parent: parent.into(), name: name.into() }
    }

    #[test]
    fn names_are_cleaned_and_classified() {
        for (name, expected) in [
            ("./", EntryPath::Root),
            ("/", EntryPath::Root),
            ("", EntryPath::Root),
            ("./a//b/", entry("a", "b")),
            ("/etc/passwd", entry("etc", "passwd")),
            ("a/.wh.b", EntryPath::Whiteout { parent: "a".into(), name: "b".into() }),
            (".wh.b", EntryPath::Whiteout { parent: "".into(), name: "b".into() }),
            ("a/.wh..wh..opq", EntryPath::Opaque { dir: "a".into() }),
            (".wh..wh..opq", EntryPath::Opaque { dir: "".into() }),
            (".wh..wh.plnk/12.3", EntryPath::Ignored),
            ("a/.wh..wh.aufs", EntryPath::Ignored),
            ("a/.whatever", entry("a", ".whatever")),
        ] {
            assert_eq!(classify(name.as_bytes()), Ok(expected), "{name}");
        }
    }

    #[test]
    fn names_that_lead_upwards_or_hide_nothing_are_refused() {
        let long = "n".repeat(256);
        for name in ["../a", "a/../b", "a/..", ".wh.", ".wh..", ".wh...", "a/.wh.b/c", long.as_str()] {
            assert!(classify(name.as_bytes()).is_err(), "{name}");
        }
        assert!(classify(b"a\0b").is_err());
        assert!(classify(&b"a/".repeat(2500)).is_err());
    }
}
