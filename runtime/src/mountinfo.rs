//! The table of mounts of a process, as `/proc/self/mountinfo` shows it (proc_pid_mountinfo(5)).

use std::{
    ffi::OsString,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

/// The mount points below a directory, outer ones first, from the text of `/proc/self/mountinfo`.
pub(crate) fn mounts_below(mountinfo: &[u8], directory: &Path) -> Vec<PathBuf> {
    let point = |line: &[u8]| line.split(|byte| *byte == b' ').nth(4).map(unescape);
    let mut points: Vec<PathBuf> = mountinfo.split(|byte| *byte == b'\n').filter_map(point).collect();
    points.retain(|path| path.starts_with(directory) && path != directory);
    points.sort();
    points.dedup();
    points
}

/// The kernel writes a space, a tab, a newline and a backslash as `\` and three octal digits.
fn unescape(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, more)) = rest.split_first() {
        let escaped = (*first == b'\\').then(|| more.get(..3)).flatten();
        let byte = escaped.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &more[3..] } else { more };
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::mounts_below;

    #[test]
    fn mount_points_below_a_directory_are_found() {
        let text = b"20 1 0:5 / / rw - ext4 /dev/vda rw\n\
            21 20 0:5 /a /group rw,relatime shared:1 - ext4 /dev/vda rw\n\
            23 21 0:5 /a/b /group/two\\040words/b\\134c\\ rw - ext4 /dev/vda rw\n\
            22 21 0:5 /a/b /group/b rw - ext4 /dev/vda rw\n\
            24 21 0:5 /a/b /group/b rw - ext4 /dev/vda rw\n\
            25 20 0:5 /a /groups rw - ext4 /dev/vda rw\n\
            26 20 short\n";
        let found = mounts_below(text, Path::new("/group"));
        assert_eq!(found, ["/group/b", "/group/two words/b\\c\\"].map(PathBuf::from));
        assert!(mounts_below(b"", Path::new("/")).is_empty());
    }
}
