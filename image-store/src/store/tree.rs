//! The summary of a layer's files: their number, their size, and one hash over everything but their contents.
//!
//! The summary is taken once, in the background, when a layer is synced, and `fsck` compares it. A layer never changes
//! after its commit, so every difference is damage. Contents are not read, because that would cost as much as the pull.
//! A written file shows by its size or its time.

use std::{
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::Path,
};

use layer::{
    Digest,
    digest::{Algorithm, Hasher},
};
use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat},
    io::Errno,
};
use serde::{Deserialize, Serialize};

use crate::error::StoreError;

/// The largest list of names and the largest value that the kernel allows.
const XATTR_BYTES: usize = 64 << 10;

/// The summary of a layer's files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TreeSummary {
    /// Files and directories, the layer's root included.
    pub(crate) entries: u64,
    /// Sizes of the regular files; a file counts once per name.
    pub(crate) bytes: u64,
    /// A hash over path, type, mode, owner, times, device, target, number of names and extended attributes of each
    /// entry.
    pub(crate) digest: Digest,
}

impl TreeSummary {
    /// The difference between the recorded summary and `found`, in words; `None` if they are equal.
    pub(crate) fn difference(&self, found: &TreeSummary) -> Option<String> {
        if self == found {
            return None;
        }
        Some(if self.entries != found.entries {
            format!("has {} entries instead of {}", found.entries, self.entries)
        } else if self.bytes != found.bytes {
            format!("holds {} bytes instead of {}", found.bytes, self.bytes)
        } else {
            "has other names, types, modes, owners, times, devices or attributes than were unpacked".to_owned()
        })
    }
}

/// Walks a layer's files below `top`. Follows no link, and keeps one directory open at a time. Errors name `root` as
/// the path.
pub(crate) fn summarize(top: &OwnedFd, root: &Path) -> Result<TreeSummary, StoreError> {
    let mut walk = Walk { hasher: Hasher::new(Algorithm::Sha256), entries: 0, bytes: 0, buffer: vec![0; XATTR_BYTES] };
    let mut waiting = vec![Vec::new()];
    while let Some(path) = waiting.pop() {
        walk.directory(top, &path, &mut waiting)
            .map_err(StoreError::io("examining", root.join(String::from_utf8_lossy(&path).as_ref())))?;
    }
    Ok(TreeSummary { entries: walk.entries, bytes: walk.bytes, digest: walk.hasher.finish() })
}

struct Walk {
    hasher: Hasher,
    entries: u64,
    bytes: u64,
    buffer: Vec<u8>,
}

impl Walk {
    /// Adds a directory and its entries. Its subdirectories are appended to `waiting`.
    fn directory(&mut self, top: &OwnedFd, path: &[u8], waiting: &mut Vec<Vec<u8>>) -> Result<(), Errno> {
        let name = if path.is_empty() { b"." } else { path };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(top, name, flags, Mode::empty())?;
        self.entry(&directory, path, b".", &rustix::fs::fstat(&directory)?)?;
        let mut names = Vec::new();
        for entry in Dir::read_from(&directory)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(name);
            }
        }
        names.sort();
        for name in names {
            let stat = rustix::fs::statat(&directory, &name[..], AtFlags::SYMLINK_NOFOLLOW)?;
            let path = if path.is_empty() { name.clone() } else { [path, b"/", &name].concat() };
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                waiting.push(path);
            } else {
                self.entry(&directory, &path, &name, &stat)?;
            }
        }
        Ok(())
    }

    #[allow(clippy::useless_conversion, reason = "these are narrower on aarch64")]
    fn entry(&mut self, directory: &OwnedFd, path: &[u8], name: &[u8], stat: &Stat) -> Result<(), Errno> {
        let kind = FileType::from_raw_mode(stat.st_mode);
        self.entries += 1;
        self.text(path);
        self.numbers(&[stat.st_mode.into(), stat.st_uid.into(), stat.st_gid.into()]);
        self.numbers(&[stat.st_mtime.cast_unsigned(), stat.st_mtime_nsec]);
        if kind != FileType::Directory {
            self.numbers(&[stat.st_nlink.into()]);
        }
        match kind {
            FileType::RegularFile => {
                let size = stat.st_size.cast_unsigned();
                self.bytes = self.bytes.saturating_add(size);
                self.numbers(&[size]);
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(directory, name, Vec::new())?;
                self.text(target.to_bytes());
            }
            FileType::BlockDevice | FileType::CharacterDevice => self.numbers(&[stat.st_rdev]),
            _ => {}
        }
        self.attributes(directory, name)
    }

    fn attributes(&mut self, directory: &OwnedFd, name: &[u8]) -> Result<(), Errno> {
        // No system call of older kernels reads attributes of a name in an open directory; the path through /proc does.
        let path = [format!("/proc/self/fd/{}/", directory.as_fd().as_raw_fd()).as_bytes(), name].concat();
        let length = match rustix::fs::llistxattr(&path[..], &mut self.buffer[..]) {
            Err(Errno::OPNOTSUPP) => 0,
            result => result?,
        };
        let names = self.buffer[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
        // The security policy of the host sets this label, not the image.
        let mut names: Vec<Vec<u8>> = names.filter(|name| *name != b"security.selinux").map(<[u8]>::to_vec).collect();
        names.sort();
        self.numbers(&[names.len() as u64]);
        for name in names {
            let length = rustix::fs::lgetxattr(&path[..], &name[..], &mut self.buffer[..])?;
            let value = self.buffer[..length].to_vec();
            self.text(&name);
            self.text(&value);
        }
        Ok(())
    }

    /// Adds the length first, so that two different trees never hash the same bytes.
    fn text(&mut self, text: &[u8]) {
        self.numbers(&[text.len() as u64]);
        self.hasher.update(text);
    }

    fn numbers(&mut self, numbers: &[u64]) {
        for number in numbers {
            self.hasher.update(&number.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{PermissionsExt, symlink},
        time::{Duration, SystemTime},
    };

    use super::*;
    use crate::store::layout::open_directory;

    fn summarize(root: &Path) -> Result<TreeSummary, StoreError> {
        super::summarize(&open_directory(root)?, root)
    }

    fn make(root: &Path) {
        fs::create_dir_all(root.join("b/c")).unwrap();
        for (name, text) in [("a", "one"), ("b/c/d", "two")] {
            fs::write(root.join(name), text).unwrap();
        }
        symlink("a", root.join("link")).unwrap();
        settle(root);
    }

    /// The same times everywhere, deepest first.
    fn settle(root: &Path) {
        for name in ["a", "b/c/d", "b/c", "b", ""] {
            let file = fs::File::open(root.join(name)).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1)).unwrap();
        }
        let time = rustix::fs::Timespec { tv_sec: 1, tv_nsec: 0 };
        let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(rustix::fs::CWD, root.join("link"), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }

    #[test]
    fn equal_trees_are_equal_and_any_change_shows() {
        let directory = tempfile::tempdir().unwrap();
        let [one, two] = ["one", "two"].map(|name| directory.path().join(name));
        [&one, &two].into_iter().for_each(|root| make(root));
        let good = summarize(&one).unwrap();
        assert_eq!(good, summarize(&two).unwrap());
        assert_eq!((good.entries, good.bytes), (6, 6));
        type Change = fn(&Path);
        let changes: [(&str, Change); 7] = [
            ("5 entries instead of 6", |root| fs::remove_file(root.join("a")).unwrap()),
            ("7 entries", |root| fs::write(root.join("b/new"), "").unwrap()),
            ("9 bytes instead of 6", |root| fs::write(root.join("a"), "longer").unwrap()),
            ("modes", |root| fs::set_permissions(root.join("a"), PermissionsExt::from_mode(0o600)).unwrap()),
            ("names", |root| fs::rename(root.join("a"), root.join("z")).unwrap()),
            ("times", |root| fs::write(root.join("a"), "eno").unwrap()),
            ("attributes", |root| {
                let nothing = rustix::fs::XattrFlags::empty();
                rustix::fs::setxattr(root.join("b"), "user.x", b"y", nothing).unwrap();
            }),
        ];
        for (expected, change) in changes {
            fs::remove_dir_all(&two).unwrap();
            make(&two);
            change(&two);
            if !expected.starts_with("times") && !two.join("z").exists() && two.join("a").exists() {
                settle(&two);
            }
            let text = good.difference(&summarize(&two).unwrap()).unwrap();
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }

    #[test]
    fn a_link_in_place_of_the_root_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        symlink("/", directory.path().join("fs")).unwrap();
        assert!(summarize(&directory.path().join("fs")).is_err());
    }
}
