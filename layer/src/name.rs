//! Names of tar entries → paths inside the layer, or the reason why not; and which of them are whiteouts.
//!
//! Pure. Names are bytes. A clean path has no leading slash, no `.` and no empty component; the layer's root is the empty path.
//! `..` is refused rather than clamped: nothing honest needs it.

use crate::tar::header::Problem;

const MAX_PATH: usize = 4096;
const MAX_COMPONENT: usize = 255;
const PREFIX: &[u8] = b".wh.";
const META_PREFIX: &[u8] = b".wh..wh.";

/// What an entry's name asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// The layer's root itself.
    Root,
    /// An ordinary entry: parent path and last component.
    Entry { parent: Vec<u8>, name: Vec<u8> },
    /// The named thing of a lower layer is gone.
    Whiteout { parent: Vec<u8>, name: Vec<u8> },
    /// Everything that lower layers have in this directory is gone.
    Opaque { dir: Vec<u8> },
    /// Bookkeeping of an old storage driver.
    Ignored,
}

/// A clean path.
pub(crate) fn clean(name: &[u8]) -> Result<Vec<u8>, Problem> {
    if name.contains(&0) {
        return Err("its name holds a NUL byte".into());
    }
    if name.len() > MAX_PATH {
        return Err(format!("its name is longer than {MAX_PATH} bytes"));
    }
    let mut path = Vec::with_capacity(name.len());
    for component in name.split(|byte| *byte == b'/') {
        match component {
            b"" | b"." => continue,
            b".." => return Err("its name leads upwards (..)".into()),
            component if component.len() > MAX_COMPONENT => {
                return Err(format!("a part of its name is longer than {MAX_COMPONENT} bytes"));
            }
            component => {
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(component);
            }
        }
    }
    Ok(path)
}

/// Parent and last component of a clean path.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

/// Parent and component joined.
pub(crate) fn join(parent: &[u8], name: &[u8]) -> Vec<u8> {
    if parent.is_empty() { name.to_vec() } else { [parent, b"/", name].concat() }
}

/// Whether no file can have this name in a layer.
pub(crate) fn is_whiteout(component: &[u8]) -> bool {
    component.starts_with(PREFIX)
}

/// The range in which all paths below `dir` stand when paths are sorted.
pub(crate) fn range_within(dir: &[u8]) -> (Vec<u8>, Vec<u8>) {
    // The byte after the slash.
    ([dir, b"/"].concat(), [dir, b"0"].concat())
}

/// Sorts an entry by its name.
pub(crate) fn classify(name: &[u8]) -> Result<Target, Problem> {
    let path = clean(name)?;
    if path.is_empty() {
        return Ok(Target::Root);
    }
    let (parent, last) = split(&path);
    if path == b".wh..wh..opq" || last == b".wh..wh..opq" {
        check_parent(parent)?;
        return Ok(Target::Opaque { dir: parent.to_vec() });
    }
    if path.split(|byte| *byte == b'/').any(|part| part.starts_with(META_PREFIX)) {
        return Ok(Target::Ignored);
    }
    check_parent(parent)?;
    match last.strip_prefix(PREFIX) {
        Some(b"" | b"." | b"..") => Err("a whiteout without a name".into()),
        Some(hidden) => Ok(Target::Whiteout { parent: parent.to_vec(), name: hidden.to_vec() }),
        None => Ok(Target::Entry { parent: parent.to_vec(), name: last.to_vec() }),
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
    use proptest::prelude::*;

    use super::*;

    fn entry(parent: &str, name: &str) -> Target {
        Target::Entry { parent: parent.into(), name: name.into() }
    }

    #[test]
    fn cleans_and_sorts() {
        for (name, expected) in [
            ("./", Target::Root),
            ("/", Target::Root),
            ("", Target::Root),
            ("./a//b/", entry("a", "b")),
            ("/etc/passwd", entry("etc", "passwd")),
            ("a/.wh.b", Target::Whiteout { parent: "a".into(), name: "b".into() }),
            (".wh.b", Target::Whiteout { parent: "".into(), name: "b".into() }),
            ("a/.wh..wh..opq", Target::Opaque { dir: "a".into() }),
            (".wh..wh..opq", Target::Opaque { dir: "".into() }),
            (".wh..wh.plnk/12.3", Target::Ignored),
            ("a/.wh..wh.aufs", Target::Ignored),
            ("a/.whatever", entry("a", ".whatever")),
        ] {
            assert_eq!(classify(name.as_bytes()), Ok(expected), "{name}");
        }
    }

    #[test]
    fn refuses() {
        let long = "n".repeat(256);
        for name in ["../a", "a/../b", "a/..", ".wh.", ".wh..", ".wh...", "a/.wh.b/c", long.as_str()] {
            assert!(classify(name.as_bytes()).is_err(), "{name}");
        }
        assert!(classify(b"a\0b").is_err());
        assert!(classify(&b"a/".repeat(2500)).is_err());
    }

    proptest! {
        #[test]
        fn clean_paths_stay_inside(name in proptest::collection::vec(prop_oneof![Just(b'/'), Just(b'.'), Just(b'a'), any::<u8>()], 0..60)) {
            if let Ok(path) = clean(&name) {
                prop_assert!(!path.starts_with(b"/"));
                let parts: Vec<_> = path.split(|b| *b == b'/').collect();
                prop_assert!(path.is_empty() || parts.iter().all(|p| !p.is_empty() && *p != b"." && *p != b".."));
                prop_assert_eq!(clean(&path).unwrap(), path);
            }
        }
    }
}
