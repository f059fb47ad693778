//! Exchanging the root in which a container is built for the container's own.
//!
//! pivot_root(2) would do it, but the kernel then looks at each thread of the node. Here the mount namespace of the
//! first process begins with nothing but the container's root, and the mounts of the building are attached over it and
//! unmounted at the end:
//!
//! 1. The creator enters a copy of the empty namespace, attaches a copy of the container's root there
//!    ([`RootExchange::enter`]), and makes the first process, which inherits that place.
//! 2. The first process takes a namespace of its own. With a user namespace of its own too, the kernel locks all mounts
//!    that are in it: no process of the container can unmount them or make them writable.
//! 3. It attaches the mounts of the building and enters them ([`RootExchange::begin`]). Another copy of the container's
//!    root is mounted there, with all locks. The engine works on that one, and enters it by chroot(2).
//! 4. The last step moves that root aside, unmounts the building, and moves the root to its place
//!    ([`BuildRoot::leave`]).
//!
//! A container that can unmount its root finds the root of step 1, which has its own files.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, Mode, OFlags, ResolveFlags, open, openat, openat2},
    io::{DupFlags, dup3},
    mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags, move_mount, open_tree, unmount},
    process::{chroot, fchdir},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

use super::{empty_namespace::EmptyNamespace, mount_tree::clone_tree};
use crate::sys;

/// A directory that the root of each container has.
const ASIDE: &str = "proc";

/// Source and target of a mount are open files.
const BY_DESCRIPTORS: MoveMountFlags =
    MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH.union(MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH);

/// The mounts of both roots, before the first process exists.
#[derive(Debug)]
pub(crate) struct RootExchange {
    empty: EmptyNamespace,
    /// `None` in the first process.
    creator: Option<CreatorNamespaces>,
    /// A detached copy of the creator's mounts.
    build: OwnedFd,
    /// A detached copy of the container's root, and where the creator has mounted the root.
    container: OwnedFd,
    rootfs: PathBuf,
}

/// The mount namespaces of the creator. It holds them until its end, because the end of a namespace takes time.
#[derive(Debug)]
struct CreatorNamespaces {
    /// The directory `/proc/self/ns`, which another mount namespace may not have.
    links: OwnedFd,
    own: OwnedFd,
    /// The one in which the first process begins.
    other: Option<OwnedFd>,
}

/// The root in which the first process builds the container, by descriptors of that process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BuildRoot {
    build: RawFd,
    /// The container's root of the beginning.
    base: RawFd,
}

impl RootExchange {
    /// Copies the mounts of the creator, which is the caller. `rootfs` is the container's root among them.
    pub fn prepare(empty: EmptyNamespace, rootfs: &Path) -> io::Result<Self> {
        let links = open_directory("/proc/self/ns")?;
        let creator = CreatorNamespaces { own: mount_namespace(&links)?, links, other: None };
        let (build, container) = (clone_tree(Path::new("/"))?, clone_tree(rootfs)?);
        Ok(Self { empty, creator: Some(creator), build, container, rootfs: rootfs.to_owned() })
    }

    /// The root that [`RootExchange::begin`] will enter.
    pub fn build_root(&self) -> BuildRoot {
        BuildRoot { build: self.build.as_raw_fd(), base: self.container.as_raw_fd() }
    }

    /// Moves the creator, which must have one thread, to a mount namespace with the container's root alone.
    pub fn enter(&mut self) -> io::Result<()> {
        self.empty.enter()?;
        if let Some(creator) = &mut self.creator {
            creator.other = Some(mount_namespace(&creator.links)?);
        }
        move_mount(&self.container, "", CWD, "/", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
        fchdir(&self.container)?;
        Ok(chroot(".")?)
    }

    /// Moves the creator back to its own mount namespace. Its root there is the topmost mount (setns(2)).
    pub fn return_to_creator(&self) -> io::Result<()> {
        let own = self.creator.as_ref().map(|creator| creator.own.as_fd());
        own.map_or(Ok(()), |own| Ok(move_into_link_name_space(own, Some(LinkNameSpaceType::Mount))?))
    }

    /// Gives this process, which was made after [`RootExchange::enter`], a mount namespace of its own, and enters the
    /// root of the building there.
    pub fn begin(&mut self) -> io::Result<()> {
        self.creator = None;
        sys::unshare_mounts()?;
        let base = open_directory("/")?;
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
        let rootfs = open_tree(&base, "", flags | OpenTreeFlags::AT_EMPTY_PATH)?;
        move_mount(&self.build, "", &base, "", BY_DESCRIPTORS)?;
        fchdir(&self.build)?;
        chroot(".")?;
        move_mount(&rootfs, "", CWD, &self.rootfs, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
        // The number is known to the last step.
        Ok(dup3(&base, &mut self.container, DupFlags::CLOEXEC)?)
    }
}

impl BuildRoot {
    /// Leaves the root of the building. This process is already in the container's root, by chroot(2).
    pub fn leave(self) -> io::Result<()> {
        let (build, base) = (sys::file_of(self.build), sys::file_of(self.base));
        let (root, directory) = (open_directory("/")?, open_directory(".")?);
        let aside = openat2(&*base, ASIDE, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
        move_mount(&root, "", &aside, "", BY_DESCRIPTORS)?;
        fchdir(&*build)?;
        unmount(".", UnmountFlags::DETACH)?;
        move_mount(&root, "", &*base, "", BY_DESCRIPTORS)?;
        Ok(fchdir(&directory)?)
    }
}

/// This process's mount namespace, by its `/proc/self/ns`.
fn mount_namespace(links: &OwnedFd) -> io::Result<OwnedFd> {
    Ok(openat(links, "mnt", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

fn open_directory(path: &str) -> io::Result<OwnedFd> {
    Ok(open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}
