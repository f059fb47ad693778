//! Changing the SELinux labels of files.
//!
//! The files can be changed by tasks meanwhile. So each one is reached through the descriptor of its directory, no link
//! is followed, and no other mount is entered. A task can make no hard link to a file of another mount.

use std::{
    ffi::CStr,
    fs, io,
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
};

use host::tree::{Visitor, walk};
use rustix::{
    fs::{CWD, FileType, Mode, OFlags, ResolveFlags, XattrFlags, fstat, getxattr, openat2, setxattr},
    io::Errno,
};

use crate::{
    error::{Context, RuntimeError, StartError, StartErrorKind},
    plan::{ContainerPlan, MountKind},
    selinux::may_be_relabelled,
};

/// The attribute with the label, which ends in a NUL byte.
const LABEL: &CStr = c"security.selinux";

/// How often a tree is walked through while other processes move its directories.
const PASSES: usize = 8;

/// Refuses a plan that gives a label to directories of the node. It must be called in the host's mount namespace.
pub(crate) fn check_relabel(plan: &ContainerPlan) -> Result<(), StartError> {
    let Some(labels) = &plan.selinux else { return Ok(()) };
    for mount in plan.mounts.iter().filter(|mount| labels.relabelled.contains_key(&mount.destination)) {
        let MountKind::Bind { source } = &mount.kind else { continue };
        // A source that does not exist yet is a volume of ours. Another missing one is reported when it is mounted.
        let real = fs::canonicalize(source).unwrap_or_else(|_| source.clone());
        if !may_be_relabelled(&real) {
            let text = format!(
                "mount source {}: {} keeps its SELinux label, which the node needs; remove `z` and `Z` from the mount",
                source.display(),
                real.display()
            );
            return Err(StartError::new(StartErrorKind::MountSource, text));
        }
    }
    Ok(())
}

/// Gives this label to a file, or to a directory and everything in it. File systems without labels stay as they are.
pub(crate) fn relabel(path: &Path, label: &str) -> Result<(), RuntimeError> {
    let value = [label.as_bytes(), b"\0"].concat();
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let change = || -> io::Result<()> {
        let root = openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS)?;
        match set_label(&root, &value) {
            Err(Errno::NOTSUP) => return Ok(()),
            result => result?,
        }
        if FileType::from_raw_mode(fstat(&root)?.st_mode) != FileType::Directory {
            return Ok(());
        }
        for _ in 0..PASSES {
            let readable = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let directory = openat2(&root, ".", readable, Mode::empty(), ResolveFlags::NO_XDEV)?;
            let mut labeller = Labeller { value: &value, failure: None };
            let complete = walk(directory, &mut labeller)?;
            labeller.failure.map_or(Ok(()), Err)?;
            if complete {
                return Ok(());
            }
        }
        Err(io::Error::other("another process keeps changing it"))
    };
    change().context(|| format!("giving {} the SELinux label {label}", path.display()))
}

/// Like [`relabel`], unless the directory itself has the label. The directory gets it last, so that an interrupted call
/// is repeated.
pub(crate) fn relabel_once(directory: &Path, label: &str) -> Result<(), RuntimeError> {
    let action = || format!("giving {} the SELinux label {label}", directory.display());
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat2(CWD, directory, flags, Mode::empty(), ResolveFlags::empty()).context(action)?;
    if has_label(&root, &[label.as_bytes(), b"\0"].concat()) {
        return Ok(());
    }
    for entry in fs::read_dir(directory).context(action)? {
        relabel(&entry.context(action)?.path(), label)?;
    }
    relabel_file(&root, label).context(action)
}

/// Gives this label to an open file. A file system without labels stays as it is.
pub(crate) fn relabel_file(file: &OwnedFd, label: &str) -> Result<(), Errno> {
    match set_label(file, &[label.as_bytes(), b"\0"].concat()) {
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
            // Another process removed it. The root of another mount keeps its label.
            Err(Errno::NOENT | Errno::XDEV) => false,
            Err(error) => {
                self.refused(name, error);
                false
            }
        }
    }

    fn leave(&mut self, _: &OwnedFd, _: &CStr) {}

    fn refused(&mut self, name: &CStr, error: Errno) {
        self.failure.get_or_insert_with(|| {
            io::Error::new(io::Error::from(error).kind(), format!("{}: {error}", name.to_string_lossy()))
        });
    }
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

    use rustix::fs::lgetxattr;

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
}
