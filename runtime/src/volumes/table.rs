//! The kernel's table of mounts. It is read instead of the mounted file systems, whose servers may not answer.

use std::{
    fs, io,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

/// How many mounts are at exactly this path, one over the other.
pub(super) fn mounts_at(path: &Path) -> io::Result<usize> {
    Ok(count(&fs::read("/proc/thread-self/mountinfo")?, path))
}

/// The mounts at a path in a table of the form of /proc/<pid>/mountinfo (proc_pid_mountinfo(5)).
fn count(table: &[u8], path: &Path) -> usize {
    let points = table.split(|byte| *byte == b'\n').filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    points.filter(|point| unescaped(point) == path).count()
}

/// A path in which the kernel writes some characters as three octal digits.
fn unescaped(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, others)) = rest.split_first() {
        let code = others.get(..3).and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match code.filter(|_| *first == b'\\') {
            Some(code) => {
                bytes.push(code);
                rest = &others[3..];
            }
            None => {
                bytes.push(*first);
                rest = others;
            }
        }
    }
    std::ffi::OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn mounts_are_counted_at_their_path_only() {
        let table = b"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            30 22 0:5 / /run/a\\040b/mount rw shared:3 - tmpfs tmpfs rw\n\
            31 30 0:6 / /run/a\\040b/mount ro - tmpfs /run/one rw\n\
            32 22 0:7 / /run/back\\134slash rw - tmpfs tmpfs rw\n";
        for (path, mounts) in
            [("/run/a b/mount", 2), ("/run/a b", 0), ("/run/one", 0), ("/run/back\\slash", 1), ("/", 1)]
        {
            assert_eq!(count(table, Path::new(path)), mounts, "{path}");
        }
        assert!(mounts_at(Path::new("/proc")).expect("the table") > 0);
    }

    #[test]
    fn what_is_no_escape_stays() {
        for text in ["", "/a\\", "/a\\9", "/a\\999", "/\\x41"] {
            assert_eq!(unescaped(text.as_bytes()).as_os_str().as_bytes(), text.as_bytes());
        }
    }
}
