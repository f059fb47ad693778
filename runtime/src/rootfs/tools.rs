//! A root of tools beside a container: another image's files, with what the kernel shows of the container in their midst.
//!
//! For a container that has no shell. Nothing of it is the container's: it is mounted in a mount namespace of the one command that
//! uses it and goes with that. The container's own root hangs in it at `/task`, mounts included, and `/proc`, `/sys` and `/dev` are
//! the container's own, with everything that is masked there. Nothing can be written but `/tmp` and what the container can write.

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

use super::overlay::Stack;
use crate::{
    error::{Context, RuntimeError},
    sys,
};

/// Where the container's root hangs.
const CONTAINER: &str = "task";
/// What the tools have of the container's in the usual place.
const DIRECTORIES: [&str; 3] = ["proc", "sys", "dev"];
const FILES: [&str; 3] = ["etc/hosts", "etc/resolv.conf", "etc/hostname"];
const SCRATCH: &str = "tmp";

/// A root of tools, attached nowhere yet.
#[derive(Debug)]
pub(crate) struct Tools(OwnedFd);

impl Tools {
    /// Mounts an image's layers, top-most first. `directory` is for the places where the container's parts go, `target` an empty directory.
    /// To be called in the host's mount namespace, by a process that ends soon: it takes a mount namespace of its own.
    pub fn mount(layers: &[PathBuf], directory: &Path, target: &Path) -> Result<Self, RuntimeError> {
        places(directory).context(|| format!("making {}", directory.display()))?;
        let private = || -> io::Result<()> {
            sys::unshare_mounts()?;
            Ok(mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?)
        };
        private().context(|| "taking a mount namespace".to_owned())?;
        // On top, so that these places are what they are meant to be, whatever the image has there.
        let layers: Vec<&Path> = [directory].into_iter().chain(layers.iter().map(PathBuf::as_path)).collect();
        Stack::read_only(&layers)?.mount(target)?;
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let root = open_tree(CWD, target, flags).context(|| "taking hold of the tools".to_owned())?;
        sys::restrict_mount(root.as_fd()).context(|| "restricting the tools' mount".to_owned())?;
        Ok(Self(root))
    }

    /// Makes it the root of the calling process, in a mount namespace of its own below the container's, which it is in.
    pub fn enter(self) -> io::Result<()> {
        sys::unshare_mounts()?;
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
        move_mount(&self.0, "", CWD, "/", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
        fchdir(&self.0)?;
        pivot_root(".", CONTAINER)?;
        chdir("/")?;
        mount("tmpfs", SCRATCH, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, Some(c"mode=1777"))?;
        for name in DIRECTORIES {
            share(name, FileType::Directory)?;
        }
        for name in FILES {
            share(name, FileType::RegularFile)?;
        }
        Ok(())
    }
}

/// Makes what things are mounted on.
fn places(directory: &Path) -> io::Result<()> {
    let dir = |name: &str| DirBuilder::new().recursive(true).mode(0o755).create(directory.join(name));
    [CONTAINER, SCRATCH, "etc"].iter().chain(&DIRECTORIES).try_for_each(|name| dir(name))?;
    // Every command makes them, and several at once may.
    FILES.iter().try_for_each(|name| File::options().create(true).append(true).open(directory.join(name)).map(drop))?;
    fs::metadata(directory).map(drop)
}

/// Shows something of the container in the same place here, if the container has it there itself: never where a link leads.
fn share(name: &str, kind: FileType) -> io::Result<()> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let path = Path::new("/").join(CONTAINER).join(name);
    let Ok(there) = openat2(CWD, &path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve) else {
        return Ok(());
    };
    if FileType::from_raw_mode(fstat(&there)?.st_mode) != kind {
        return Ok(());
    }
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_RECURSIVE;
    let copy = open_tree(&there, "", flags)?;
    Ok(move_mount(&copy, "", CWD, Path::new("/").join(name), MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}
