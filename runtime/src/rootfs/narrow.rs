//! The little of the host that the engine sees while it builds a container.
//!
//! The engine reads its mount namespace's table of mounts several times and copies the namespace for the container, so both must not grow with
//! what runs on the host. Before it begins, the creator moves into a root of its own: a file system in memory with `/proc`,
//! `/dev`, the task's folder, and what the container's mounts show of the host, each in the place that the spec then names. On version 1 it has no control
//! groups, so the engine finds none to move its processes to ([`Stay`](crate::cgroup::Stay)).

use std::{
    fs, io,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, FileType, Mode, OFlags, fstat, open},
    mount::{
        MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, mount_change,
        move_mount, open_tree, unmount,
    },
    process::{chdir, fchdir, pivot_root},
};

use crate::{
    cgroup,
    error::{Context, StartError, StartErrorKind},
    spec::{GROUPS, libcontainer_spec::Spec},
    state::TaskDir,
};

/// Where sources of mounts are, by number: the engine takes a mount of version 1's control groups for a hierarchy if it is named like one.
const SOURCES: &str = "/sources";

/// Copies of mounts that are attached nowhere yet, with the places that they are meant for.
type Trees = Vec<(PathBuf, OwnedFd)>;

/// What the narrow root holds open for the engine, by number.
pub(crate) struct Narrow {
    _namespaces: Vec<OwnedFd>,
}

/// Moves this process, which is in a mount namespace of its own, into the narrow root of a task and lets the spec name what it needs there.
pub(crate) fn narrow(task: &TaskDir, mode: cgroup::Mode, spec: &mut Spec) -> Result<Narrow, StartError> {
    let namespaces = hold_namespaces(spec)?;
    let mut whole = vec![task.path()];
    if mode == cgroup::Mode::V2 {
        // The engine makes the container's group, which is then mounted from there.
        whole.push(Path::new(GROUPS));
    }
    let mut trees = sources(&whole, spec)?;
    // What is mounted below the last two is nothing to the engine, or a source of its own.
    let places = whole
        .into_iter()
        .map(|path| (path, hold(path)))
        .chain(["/proc", "/dev"].map(|path| (Path::new(path), hold_one(path))));
    for (path, tree) in places {
        trees.push((path.to_owned(), tree.context(|| format!("taking hold of {}", path.display()))?));
    }
    enter(task.path(), &trees).context(|| "making the root that the container is built in".to_owned())?;
    Ok(Narrow { _namespaces: namespaces })
}

/// A copy of the mounts at a path that is attached nowhere yet.
fn hold(path: &Path) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    Ok(open_tree(CWD, path, flags)?)
}

/// The same without the mounts below it.
fn hold_one(path: &str) -> io::Result<OwnedFd> {
    Ok(open_tree(CWD, path, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)?)
}

/// Takes hold of the sources that do not lie in folders that will be there, each with the place that the spec has for it from now on.
fn sources(there: &[&Path], spec: &mut Spec) -> Result<Trees, StartError> {
    let mut trees = Vec::new();
    for mount in spec.mounts_mut().iter_mut().flatten().filter(|mount| mount.typ().as_deref() == Some("bind")) {
        let Some(source) = mount.source().clone() else { continue };
        if there.iter().any(|folder| source.starts_with(folder)) {
            continue;
        }
        let tree = hold(&source).map_err(|error| {
            StartError::new(StartErrorKind::MountSource, format!("mount source {}: {error}", source.display()))
        })?;
        let place = Path::new(SOURCES).join(trees.len().to_string());
        mount.set_source(Some(place.clone()));
        trees.push((place, tree));
    }
    Ok(trees)
}

/// Opens namespaces that are joined by path. The engine's processes inherit the descriptors.
fn hold_namespaces(spec: &mut Spec) -> Result<Vec<OwnedFd>, StartError> {
    let mut held = Vec::new();
    let all = spec.linux_mut().iter_mut().flat_map(|linux| linux.namespaces_mut().iter_mut().flatten());
    for namespace in all {
        let Some(path) = namespace.path().clone() else { continue };
        let opened = open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .context(|| format!("opening the namespace {}", path.display()))?;
        namespace.set_path(Some(format!("/proc/self/fd/{}", opened.as_raw_fd()).into()));
        held.push(opened);
    }
    Ok(held)
}

/// Makes the root, with each tree in its place, and goes there. `cover` is a folder that is hidden by that.
fn enter(cover: &Path, trees: &[(PathBuf, OwnedFd)]) -> io::Result<()> {
    mount("tmpfs", cover, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, Some(c"mode=755"))?;
    let place = |path: &Path| cover.join(path.strip_prefix("/").unwrap_or(path));
    // A file system in memory is also how a host with version 1 looks here.
    fs::create_dir_all(place(Path::new(GROUPS)))?;
    for (path, tree) in trees {
        let place = place(path);
        if FileType::from_raw_mode(fstat(tree)?.st_mode) == FileType::Directory {
            fs::create_dir_all(&place)?;
        } else {
            place.parent().map_or(Ok(()), fs::create_dir_all)?;
            fs::write(&place, "")?;
        }
        move_mount(tree, "", CWD, &place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    }
    let old = open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    chdir(cover)?;
    pivot_root(".", ".")?;
    fchdir(&old)?;
    // What goes must not take along what it is a copy of.
    mount_change(".", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    unmount(".", UnmountFlags::DETACH)?;
    Ok(chdir("/")?)
}
