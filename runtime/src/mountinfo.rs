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

/// The mount point of a file system of this type, from the text of `/proc/self/mountinfo`.
pub(crate) fn mount_of_type(mountinfo: &[u8], kind: &str) -> Option<PathBuf> {
    mountinfo.split(|byte| *byte == b'\n').find_map(|line| {
        // The type is the first field after the hyphen that ends the optional fields.
        let mut after = line.split(|byte| *byte == b' ').skip(6).skip_while(|field| *field != b"-").skip(1);
        let point = line.split(|byte| *byte == b' ').nth(4)?;
        (after.next()? == kind.as_bytes()).then(|| unescape(point))
    })
}

/// Whether the mount that holds a path, or a mount below the path, is shared or a slave, from the text of
/// `/proc/self/mountinfo`. Of several mounts at one place the last one counts.
pub(crate) fn propagates(mountinfo: &[u8], path: &Path) -> bool {
    let mut holder: Option<(PathBuf, bool)> = None;
    for line in mountinfo.split(|byte| *byte == b'\n') {
        let fields = || line.split(|byte| *byte == b' ');
        let Some(point) = fields().nth(4).map(unescape) else { continue };
        // The optional fields end with a hyphen.
        let propagates = fields()
            .skip(6)
            .take_while(|field| *field != b"-")
            .any(|field| field.starts_with(b"shared:") || field.starts_with(b"master:"));
        if point != path && point.starts_with(path) && propagates {
            return true;
        }
        let is_nearer = holder.as_ref().is_none_or(|(known, _)| point.starts_with(known));
        if path.starts_with(&point) && is_nearer {
            holder = Some((point, propagates));
        }
    }
    holder.is_some_and(|(_, propagates)| propagates)
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

    use super::{mount_of_type, mounts_below, propagates};

    #[test]
    fn a_mount_is_found_by_its_type() {
        let text = b"20 1 0:5 / / rw - ext4 /dev/vda rw\n\
            21 20 0:6 / /sys/fs/res\\040ctrl rw shared:3 master:1 - resctrl resctrl rw\n";
        assert_eq!(mount_of_type(text, "resctrl"), Some(PathBuf::from("/sys/fs/res ctrl")));
        assert_eq!(mount_of_type(text, "vda"), None);
        assert_eq!(mount_of_type(b"", "ext4"), None);
    }

    #[test]
    fn propagation_is_that_of_the_mount_of_a_path_and_of_mounts_below_it() {
        let text = b"20 1 0:5 / / rw - ext4 /dev/vda rw\n\
            21 20 0:5 / /shared rw shared:1 - ext4 /dev/vda rw\n\
            22 20 0:5 / /slave rw master:1 propagate_from:2 - ext4 /dev/vda rw\n\
            23 21 0:5 / /shared/own rw unbindable - ext4 /dev/vda rw\n\
            24 20 0:5 / /a/b\\040c rw shared:3 - ext4 /dev/vda rw\n\
            25 20 0:5 / /over rw shared:4 - ext4 /dev/vda rw\n\
            26 25 0:5 / /over rw - shared:5 /dev/vda rw\n";
        for (path, expected) in [
            ("/", true),
            ("/etc", false),
            ("/shared", true),
            ("/shared/x", true),
            ("/shareds", false),
            ("/shared/own", false),
            ("/shared/own/x", false),
            ("/slave/x", true),
            ("/a", true),
            ("/a/b", false),
            ("/a/b c", true),
            ("/over/x", false),
        ] {
            assert_eq!(propagates(text, Path::new(path)), expected, "{path}");
        }
        assert!(!propagates(b"", Path::new("/")));
    }

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
