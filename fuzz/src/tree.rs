//! The files of an unpacked layer: as text to compare, and what must hold for every layer.

use std::{
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::Path,
};

/// The files below a directory, one line per path.
pub(crate) fn look(directory: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next).expect("a directory") {
            let path = entry.expect("an entry").path();
            let meta = fs::symlink_metadata(&path).expect("a file that the directory lists");
            let kind = meta.file_type();
            let xattrs = xattrs(&path);
            let has = |name: &str| xattrs.iter().any(|known| known == name);
            let kind = if kind.is_dir() {
                format!("dir {}", has("trusted.overlay.opaque"))
            } else if kind.is_file() {
                format!("file {}", meta.len())
            } else if kind.is_symlink() {
                format!("link {}", fs::read_link(&path).expect("a link").display())
            } else if kind.is_char_device() {
                assert_eq!(meta.rdev(), 0);
                "whiteout".to_owned()
            } else if kind.is_block_device() {
                "block".to_owned()
            } else {
                "fifo".to_owned()
            };
            let names = if kind.starts_with("dir") || kind == "whiteout" { 0 } else { meta.nlink() as usize };
            let shown = path.strip_prefix(directory).expect("below the directory").display().to_string();
            lines.push(line(&shown, &kind, meta.mode() & 0o7777, meta.uid(), names, has("user.a")));
            if meta.is_dir() {
                open.push(path);
            }
        }
    }
    lines.sort();
    lines
}

/// One file as text.
pub(crate) fn line(path: &str, kind: &str, mode: u32, owner: u32, names: usize, attribute: bool) -> String {
    let mode = if kind.starts_with("link") || kind == "whiteout" { 0 } else { mode };
    format!("{path} {kind} {mode:o} {owner} {names} {attribute}")
}

/// The names of a file's extended attributes.
pub(crate) fn xattrs(path: &Path) -> Vec<String> {
    let mut names = vec![0u8; 64 << 10];
    let length = rustix::fs::llistxattr(path, &mut names[..]).expect("a list of attributes");
    let names = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names.map(|name| String::from_utf8_lossy(name).into_owned()).collect()
}

/// What holds for every layer: no foreign attributes, no files with names of whiteouts, bounded depth.
pub(crate) fn check_tree(path: &Path, depth: usize) {
    assert!(depth <= 600);
    let meta = fs::symlink_metadata(path).expect("a file that the directory lists");
    assert!(meta.uid() != u32::MAX && meta.gid() != u32::MAX);
    for name in xattrs(path) {
        let known = ["security.capability", "system.posix_acl_access", "system.posix_acl_default"];
        let ours = name == "trusted.overlay.opaque" && meta.is_dir() && depth > 0;
        let images = name.starts_with("user.") && !name.starts_with("user.overlay.");
        assert!(ours || images || known.contains(&name.as_str()), "{name} on {}", path.display());
    }
    if meta.is_dir() {
        for entry in fs::read_dir(path).expect("a directory") {
            let entry = entry.expect("an entry");
            assert!(!entry.file_name().as_encoded_bytes().starts_with(b".wh."), "{:?}", entry.path());
            check_tree(&entry.path(), depth + 1);
        }
    }
}
