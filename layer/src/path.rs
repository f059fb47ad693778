//! Paths inside a layer.
//!
//! Pure. Paths are bytes. A clean path has no leading slash, no `.`, no `..` and no empty component; the layer's root
//! is the empty path. `..` is refused rather than clamped: no honest image needs it.

use std::collections::BTreeSet;

use crate::error::Problem;

const MAX_PATH: usize = 4096;
const MAX_COMPONENT: usize = 255;

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

/// The components of a path or link target, without `.` and empty ones.
pub(crate) fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = Vec<u8>> {
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".").map(<[u8]>::to_vec)
}

/// The range of all paths below `dir`, in the order of paths.
pub(crate) fn range_within(dir: &[u8]) -> (Vec<u8>, Vec<u8>) {
    // The byte after the slash.
    ([dir, b"/"].concat(), [dir, b"0"].concat())
}

/// Removes `dir` and what lies below it from a set of paths.
pub(crate) fn remove_within(paths: &mut BTreeSet<Vec<u8>>, dir: &[u8]) {
    paths.remove(dir);
    let (inside, end) = range_within(dir);
    let gone: Vec<_> = paths.range(inside..end).cloned().collect();
    for path in gone {
        paths.remove(&path);
    }
}

/// Whether `path` is `dir` or lies below it.
pub(crate) fn is_within(path: &[u8], dir: &[u8]) -> bool {
    path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest[0] == b'/' || dir.is_empty())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_directory_is_removed_together_with_the_paths_below_it() {
        let mut paths: BTreeSet<Vec<u8>> =
            ["a", "a!", "a-b", "a/b", "a/b/c", "a0", "b"].iter().map(|path| path.as_bytes().to_vec()).collect();
        remove_within(&mut paths, b"a");
        let left: Vec<_> = paths.iter().map(|path| std::str::from_utf8(path).unwrap()).collect();
        assert_eq!(left, ["a!", "a-b", "a0", "b"]);
    }

    #[test]
    fn containment_is_by_component() {
        assert!(is_within(b"a/b", b"a"));
        assert!(is_within(b"a", b"a"));
        assert!(is_within(b"a", b""));
        assert!(!is_within(b"ab", b"a"));
    }

    proptest! {
        #[test]
        fn clean_paths_stay_inside(
            name in proptest::collection::vec(prop_oneof![Just(b'/'), Just(b'.'), Just(b'a'), any::<u8>()], 0..60)
        ) {
            if let Ok(path) = clean(&name) {
                prop_assert!(!path.starts_with(b"/"));
                let parts: Vec<_> = path.split(|b| *b == b'/').collect();
                prop_assert!(path.is_empty() || parts.iter().all(|p| !p.is_empty() && *p != b"." && *p != b".."));
                prop_assert_eq!(clean(&path).unwrap(), path);
            }
        }
    }
}
