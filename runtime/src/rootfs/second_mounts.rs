//! Second mounts: mounts that show a directory, or one that contains it, at another path than its own.
//!
//! A plan decides by its path how a directory appears in a container. A mount made by another program can show the
//! same directory elsewhere: a driver with a chroot mounts the directory that a group of tasks shares in each task's
//! own directory.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, statat},
    io::Errno,
    mount::{UnmountFlags, unmount},
};

/// Detaches the mounts below `tree` that show `tree/below`, or a directory between `tree` and it, a second time. The
/// tree must be one that only this process uses.
pub(super) fn detach(tree: &Path, below: &Path) -> io::Result<()> {
    // A mount can hide another one at the same path.
    loop {
        let found = find(tree, below)?;
        if found.is_empty() {
            return Ok(());
        }
        for path in found {
            unmount(&path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?;
        }
    }
}

/// The paths of these mounts.
pub(super) fn find(tree: &Path, below: &Path) -> io::Result<Vec<PathBuf>> {
    let own = tree.join(below);
    let own: Vec<&Path> = own.ancestors().take_while(|path| path.starts_with(tree)).collect();
    let mut shown = Vec::new();
    for path in &own {
        shown.extend(identity(path)?);
    }
    let mut found = Vec::new();
    for path in mounts_below(&fs::read("/proc/self/mountinfo")?, tree) {
        let is_second = !own.contains(&path.as_path()) && identity(&path)?.is_some_and(|id| shown.contains(&id));
        // A mount in a second one goes with it.
        if is_second && found.iter().all(|outer| !path.starts_with(outer)) {
            found.push(path);
        }
    }
    Ok(found)
}

/// Device and inode; `None` if there is no such file.
fn identity(path: &Path) -> io::Result<Option<(u64, u64)>> {
    match statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some((stat.st_dev, stat.st_ino))),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The mount points below a directory, outer ones first, from the text of `/proc/self/mountinfo`.
fn mounts_below(mountinfo: &[u8], directory: &Path) -> Vec<PathBuf> {
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
