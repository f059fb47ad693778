//! Changing the SELinux labels of files.
//!
//! The files can be changed by tasks meanwhile. So each one is reached through the descriptor of its directory, no link
//! is followed, and no other mount is entered. A task can make no hard link to a file of another mount.

use std::{
    ffi::{CStr, OsStr},
    fs, io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use host::tree::{Visitor, walk};
use rustix::{
    fs::{CWD, FileType, Mode, OFlags, ResolveFlags, XattrFlags, fstat, getxattr, openat2, setxattr},
    io::Errno,
};

use crate::error::{Context, RuntimeError};

/// The attribute with the label, which ends in a NUL byte.
const LABEL: &CStr = c"security.selinux";

/// How often a tree is walked through while other processes move its directories.
const PASSES: usize = 8;

/// Gives this label to a file, or to a directory and everything in it. File systems without labels stay as they are.
pub(crate) fn relabel(path: &Path, label: &str) -> Result<(), RuntimeError> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS).map_err(io::Error::from);
    opened
        .and_then(|root| relabel_open(&root, label))
        .context(|| format!("giving {} the SELinux label {label}", path.display()))
}

/// Like [`relabel`], for an open file or directory. A directory gets the label last, and what has it is not walked
/// through again: the kernel gives new files the label of their directory. So an interrupted call is repeated.
pub(crate) fn relabel_open(root: &OwnedFd, label: &str) -> io::Result<()> {
    let value = with_end(label);
    if has_label(root, &value) {
        return Ok(());
    }
    relabel_content(root, &value)?.map_or(Ok(()), Err)?;
    Ok(relabel_file(root, label)?)
}

/// Like [`relabel`], for a directory of which a part may keep its label. The result is the reason, with a file's path.
pub(crate) fn relabel_most(directory: &Path, label: &str) -> Result<Option<io::Error>, RuntimeError> {
    let action = || format!("giving {} the SELinux label {label}", directory.display());
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat2(CWD, directory, flags, Mode::empty(), ResolveFlags::empty()).context(action)?;
    let value = with_end(label);
    if has_label(&root, &value) {
        return Ok(None);
    }
    let kept = relabel_content(&root, &value).context(action)?;
    relabel_file(&root, label).context(action)?;
    Ok(kept)
}

/// Labels everything in a directory; nothing if `root` is a file. The result is the reason why a part kept its label.
fn relabel_content(root: &OwnedFd, value: &[u8]) -> io::Result<Option<io::Error>> {
    if FileType::from_raw_mode(fstat(root)?.st_mode) != FileType::Directory {
        return Ok(None);
    }
    for _ in 0..PASSES {
        let readable = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat2(root, ".", readable, Mode::empty(), ResolveFlags::NO_XDEV)?;
        let mut labeller = Labeller { value, failure: None };
        if walk(directory, &mut labeller)? || labeller.failure.is_some() {
            return Ok(labeller.failure);
        }
    }
    Ok(Some(io::Error::other("another process keeps changing it")))
}

/// Gives this label to an open file. A file system without labels stays as it is.
pub(crate) fn relabel_file(file: &OwnedFd, label: &str) -> Result<(), Errno> {
    match set_label(file, &with_end(label)) {
        Err(Errno::NOTSUP) => Ok(()),
        result => result,
    }
}

struct Labeller<'a> {
    value: &'a [u8],
    failure: Option<io::Error>,
}

impl Visitor for Labeller<'_> {
    fn see(&mut self, directory: &OwnedFd, name: &CStr, _: FileType) -> bool {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = openat2(directory, name, flags, Mode::empty(), ResolveFlags::NO_XDEV);
        match opened.and_then(|file| set_label(&file, self.value)) {
            Ok(()) => true,
            // Another process removed it. The root of another mount keeps its label, and so does a file system without
            // labels.
            Err(Errno::NOENT | Errno::XDEV | Errno::NOTSUP) => false,
            Err(error) => {
                self.keep(Some(directory), name, error);
                false
            }
        }
    }

    fn leave(&mut self, _: &OwnedFd, _: &CStr) {}

    fn refused(&mut self, name: &CStr, error: Errno) {
        self.keep(None, name, error);
    }
}

impl Labeller<'_> {
    /// Notes why a file keeps its label, if it is the first one.
    fn keep(&mut self, directory: Option<&OwnedFd>, name: &CStr, error: Errno) {
        self.failure.get_or_insert_with(|| {
            let directory = directory.and_then(|directory| fs::read_link(path_of(directory)).ok()).unwrap_or_default();
            let path = directory.join(OsStr::from_bytes(name.to_bytes()));
            io::Error::new(io::Error::from(error).kind(), format!("{}: {error}", path.display()))
        });
    }
}

/// A label as it is stored: with a NUL byte.
fn with_end(label: &str) -> Vec<u8> {
    [label.as_bytes(), b"\0"].concat()
}

/// The path of an open file. A descriptor of a path gives no access to attributes; its link in procfs does.
fn path_of(file: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

fn has_label(file: &OwnedFd, value: &[u8]) -> bool {
    let mut present = vec![0; value.len() + 1];
    getxattr(path_of(file), LABEL, present.as_mut_slice()).is_ok_and(|length| &present[..length] == value)
}

/// Labels an open file, unless it has the label.
fn set_label(file: &OwnedFd, value: &[u8]) -> Result<(), Errno> {
    if has_label(file, value) { Ok(()) } else { setxattr(path_of(file), LABEL, value, XattrFlags::empty()) }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::symlink, path::PathBuf};

    use rustix::{
        fs::{IFlags, ioctl_setflags, lgetxattr},
        mount::{MountPropagationFlags, mount_change},
    };

    use super::*;

    const LABELLED: &str = "system_u:object_r:container_file_t:s0:c1,c2";

    fn label_of(path: &Path) -> Option<String> {
        let mut value = vec![0; 256];
        let length = lgetxattr(path, LABEL, value.as_mut_slice()).ok()?;
        Some(String::from_utf8_lossy(&value[..length]).trim_end_matches('\0').to_owned())
    }

    #[test]
    #[allow(clippy::print_stdout, reason = "a skipped test says why")]
    fn everything_in_a_directory_is_labelled_and_nothing_behind_a_link() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        fs::create_dir_all(at("tree/deep/er")).expect("a directory");
        fs::create_dir(at("outside")).expect("a directory");
        for file in ["tree/file", "tree/deep/er/file", "outside/file"] {
            fs::write(at(file), "").expect("written");
        }
        symlink(at("outside"), at("tree/link")).expect("a link");
        symlink(at("outside/file"), at("tree/deep/link")).expect("a link");
        rustix::fs::mknodat(CWD, at("tree/fifo"), FileType::Fifo, Mode::RWXU, 0).expect("a FIFO");
        if let Err(error) = relabel(&at("tree"), LABELLED) {
            println!("skipped: this test may not change labels: {error}");
            return;
        }
        if label_of(&at("tree")).is_none() {
            println!("skipped: this file system has no labels");
            return;
        }
        let all = ["tree", "tree/file", "tree/fifo", "tree/deep", "tree/deep/er", "tree/deep/er/file"];
        for name in all.into_iter().chain(["tree/link", "tree/deep/link"]) {
            assert_eq!(label_of(&at(name)).as_deref(), Some(LABELLED), "{name}");
        }
        for name in ["outside", "outside/file"] {
            assert_ne!(label_of(&at(name)).as_deref(), Some(LABELLED), "{name}");
        }
        relabel(&at("tree/file"), "system_u:object_r:container_file_t:s0").expect("another label");
        assert_eq!(label_of(&at("tree/file")).as_deref(), Some("system_u:object_r:container_file_t:s0"));
        assert!(relabel(&PathBuf::from("/nonexistent"), LABELLED).is_err());
    }

    /// A directory with a file whose label cannot be changed; none where the test may not change labels or attributes.
    fn with_fixed_file() -> Option<(tempfile::TempDir, FixedFile)> {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        for name in ["volumes/a", "volumes/b", "volumes/c"] {
            fs::create_dir_all(at(name)).expect("a directory");
            fs::write(at(name).join("file"), "").expect("written");
        }
        relabel(&at("volumes/c"), LABELLED).ok().filter(|()| label_of(&at("volumes/c")).is_some())?;
        let fixed = FixedFile::new(at("volumes/b/file"))?;
        Some((directory, fixed))
    }

    /// A file with the attribute `immutable`, as long as this lives.
    struct FixedFile(PathBuf);

    impl FixedFile {
        fn new(path: PathBuf) -> Option<Self> {
            let changed = ioctl_setflags(fs::File::open(&path).expect("opened"), IFlags::IMMUTABLE);
            changed.ok().map(|()| Self(path))
        }
    }

    impl Drop for FixedFile {
        fn drop(&mut self) {
            ioctl_setflags(fs::File::open(&self.0).expect("opened"), IFlags::empty()).expect("changed");
        }
    }

    #[test]
    #[allow(clippy::print_stdout, reason = "a skipped test says why")]
    fn a_file_that_keeps_its_label_is_named_and_everything_else_is_labelled() {
        let Some((directory, fixed)) = with_fixed_file() else {
            println!("skipped: this test may not change labels or attributes");
            return;
        };
        let volumes = directory.path().join("volumes");
        let error = relabel(&volumes, LABELLED).expect_err("a file keeps its label");
        assert!(error.to_string().contains(&*fixed.0.to_string_lossy()), "{error}");
        assert_ne!(label_of(&volumes).as_deref(), Some(LABELLED), "the next call tries it again");
        let kept = relabel_most(&volumes, LABELLED).expect("the rest is labelled").expect("a reason");
        assert!(kept.to_string().starts_with(&*fixed.0.to_string_lossy()), "{kept}");
        for name in ["", "a", "a/file", "b", "c", "c/file"] {
            assert_eq!(label_of(&volumes.join(name)).as_deref(), Some(LABELLED), "{name}");
        }
        assert_ne!(label_of(&fixed.0).as_deref(), Some(LABELLED));
    }

    #[test]
    #[allow(clippy::print_stdout, reason = "a skipped test says why")]
    fn what_has_the_label_is_not_walked_through_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("file");
        fs::write(&file, "").expect("written");
        if relabel(directory.path(), LABELLED).is_err() || label_of(&file).is_none() {
            println!("skipped: this test may not change labels");
            return;
        }
        setxattr(&file, LABEL, b"other\0", XattrFlags::empty()).expect("labelled");
        relabel(directory.path(), LABELLED).expect("nothing to do");
        assert_eq!(label_of(&file).as_deref(), Some("other"));
        assert!(relabel_most(directory.path(), LABELLED).expect("nothing to do").is_none());
        relabel(directory.path(), "system_u:object_r:container_file_t:s0").expect("another label");
        assert_ne!(label_of(&file).as_deref(), Some("other"));
    }

    #[test]
    #[allow(clippy::print_stdout, reason = "a skipped test says why")]
    fn no_other_mount_is_labelled() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        for name in ["volumes/mounted", "other"] {
            fs::create_dir_all(at(name)).expect("a directory");
        }
        fs::write(at("other/file"), "").expect("written");
        let (volumes, other, mounted) = (at("volumes"), at("other"), at("volumes/mounted"));
        let labelled = std::thread::spawn(move || -> io::Result<Option<String>> {
            crate::sys::unshare_mounts()?;
            mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
            rustix::mount::mount_bind(&other, &mounted)?;
            relabel_most(&volumes, LABELLED).map_err(io::Error::other)?;
            Ok(label_of(&volumes))
        });
        match labelled.join().expect("a thread") {
            Ok(Some(label)) => assert_eq!(label, LABELLED),
            other => println!("skipped: this test may not mount or change labels: {other:?}"),
        }
        for name in ["other", "other/file"] {
            assert_ne!(label_of(&at(name)).as_deref(), Some(LABELLED), "{name}");
        }
    }
}
