//! The root of a command that runs in a container with a debug image.
//!
//! It is for containers without a shell. The root consists of the files of the debug image, and:
//!
//! - `/task` is the container's root, with its mounts.
//! - `/proc`, `/sys` and `/dev` are the container's, with everything that is masked there.
//! - `/tmp` is writable. Everything else of the debug image is read-only.
//!
//! It is mounted in a mount namespace of that one command and disappears with it. The container never sees it.

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::DirBuilderExt,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat2},
    mount::{
        MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount, mount_change, move_mount, open_tree,
    },
    process::{chdir, fchdir, pivot_root},
};

use super::{layers::Layers, overlay::Overlay};
use crate::{
    error::{Context, RuntimeError},
    id_map::IdMap,
    sys,
};

/// The mount point of the container's root.
const CONTAINER: &str = "task";
/// Directories of the container that appear at the same path.
const SHARED_DIRECTORIES: [&str; 3] = ["proc", "sys", "dev"];
/// Files of the container that appear at the same path.
const SHARED_FILES: [&str; 3] = ["etc/hosts", "etc/resolv.conf", "etc/hostname"];
/// The writable directory.
const SCRATCH: &str = "tmp";

/// The root of a debug image, not attached yet.
#[derive(Debug)]
pub(crate) struct DebugRoot(OwnedFd);

impl DebugRoot {
    /// Mounts the layers of a debug image, top-most first. The mount points for parts of the container are created in
    /// `directory`; `target` is an empty directory. It must be called in the host's mount namespace, by a process that
    /// ends soon, because the process moves to a new mount namespace. The ids of the image become the container's. With
    /// `attach`, its layers are attached below the root. Its files get the SELinux label.
    pub fn mount(
        layers: &[PathBuf],
        directory: &Path,
        target: &Path,
        map: Option<&IdMap>,
        attach: bool,
        label: Option<&str>,
    ) -> Result<Self, RuntimeError> {
        create_mount_points(directory).context(|| format!("making {}", directory.display()))?;
        let leave_host = || -> io::Result<()> {
            sys::unshare_mounts()?;
            Ok(mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?)
        };
        leave_host().context(|| "taking a mount namespace".to_owned())?;
        // This directory is the top-most layer, so that the mount points are independent of the content of the image.
        let layers: Vec<PathBuf> = [directory.to_owned()].into_iter().chain(layers.iter().cloned()).collect();
        let layers = Layers::open(&layers, None, map, label)?;
        if attach {
            layers.attach(target)?;
        }
        Overlay::read_only(layers.paths())?.labelled(label).mount(target)?;
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let root = open_tree(CWD, target, flags).context(|| "cloning the mount of the debug image".to_owned())?;
        sys::restrict_mount(root.as_fd()).context(|| "restricting the mount of the debug image".to_owned())?;
        Ok(Self(root))
    }

    /// Makes this the root of the calling process, which must be in the container's mount namespace. The process moves
    /// to a copy of that namespace.
    pub fn enter(self) -> io::Result<()> {
        sys::unshare_mounts()?;
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
        move_mount(&self.0, "", CWD, "/", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
        fchdir(&self.0)?;
        pivot_root(".", CONTAINER)?;
        chdir("/")?;
        mount("tmpfs", SCRATCH, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, Some(c"mode=1777"))?;
        for name in SHARED_DIRECTORIES {
            share(name, FileType::Directory)?;
        }
        for name in SHARED_FILES {
            share(name, FileType::RegularFile)?;
        }
        Ok(())
    }
}

/// Creates the mount points.
fn create_mount_points(directory: &Path) -> io::Result<()> {
    let dir = |name: &str| DirBuilder::new().recursive(true).mode(0o755).create(directory.join(name));
    [CONTAINER, SCRATCH, "etc"].iter().chain(&SHARED_DIRECTORIES).try_for_each(|name| dir(name))?;
    // Several commands may create the same mount points at the same time.
    SHARED_FILES
        .iter()
        .try_for_each(|name| File::options().create(true).append(true).open(directory.join(name)).map(drop))?;
    fs::metadata(directory).map(drop)
}

/// Mounts a directory or a file of the container at the same path here, if the container has it. Symbolic links are not
/// followed.
fn share(name: &str, kind: FileType) -> io::Result<()> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let path = Path::new("/").join(CONTAINER).join(name);
    let Ok(file) = openat2(CWD, &path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve) else {
        return Ok(());
    };
    if FileType::from_raw_mode(fstat(&file)?.st_mode) != kind {
        return Ok(());
    }
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_RECURSIVE;
    let copy = open_tree(&file, "", flags)?;
    Ok(move_mount(&copy, "", CWD, Path::new("/").join(name), MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}
