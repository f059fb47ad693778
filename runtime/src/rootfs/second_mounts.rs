//! Second mounts: mounts that show a directory, or one that contains it, at another path than its own.
//!
//! A plan decides by its path how a directory appears in a container. A mount made by another program can show the
//! same directory elsewhere: a driver with a chroot mounts the directory that a group of tasks shares in each task's
//! own directory.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, statat},
    io::Errno,
    mount::{UnmountFlags, unmount},
};

use crate::mountinfo::mounts_below;

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
