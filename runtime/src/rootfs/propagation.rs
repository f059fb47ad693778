//! Mount propagation, which libcontainer leaves at what the whole root has.
//!
//! A bind mount inherits its propagation from its source. So where one setting for the whole root does not suit a mount, its
//! source is first bound to a folder of the task with the right one, and the container is given that folder:
//! - all private: the root is private, nothing to prepare;
//! - some follow the host: the root is a slave, private ones are prepared;
//! - some go both ways: the root is shared, private ones are prepared, and so are these, from a copy of the mount that was
//!   taken before we left the host's mount namespace, because only that copy is still a peer of the host's mount.

use std::{
    fs,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::CWD,
    mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree},
};

use crate::{
    error::{StartError, StartErrorKind},
    plan::{ContainerPlan, MountKind, Propagation},
    spec::{Source, Sources},
    sys::{PropagationType, set_propagation},
};

/// Copies of the host's mounts that go both ways: index in the plan's mounts, the copy.
pub(crate) struct HostMounts(Vec<(usize, OwnedFd)>);

impl HostMounts {
    /// To be called in the host's mount namespace.
    pub fn open(plan: &ContainerPlan) -> Result<Self, StartError> {
        binds(plan)
            .filter(|(index, _)| plan.mounts[*index].propagation == Propagation::Bidirectional)
            .map(|(index, source)| Ok((index, copy(source, PropagationType::Shared)?)))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Prepares what needs preparing in `folder`, in the mount namespace that the container is made from.
    pub fn prepare(self, plan: &ContainerPlan, folder: &Path) -> Result<Sources, StartError> {
        let mut copies = self.0;
        let mixed = plan.mounts.iter().any(|mount| mount.propagation != Propagation::Private);
        if mixed {
            for (index, source) in binds(plan) {
                if plan.mounts[index].propagation == Propagation::Private {
                    copies.push((index, copy(source, PropagationType::Private)?));
                }
            }
        }
        copies
            .into_iter()
            .map(|(index, copy)| attach(plan, index, &copy, folder))
            .collect::<Result<_, _>>()
            .map(Sources)
    }
}

fn binds(plan: &ContainerPlan) -> impl Iterator<Item = (usize, &Path)> {
    plan.mounts.iter().enumerate().filter_map(|(index, mount)| match &mount.kind {
        MountKind::Bind { source } => Some((index, source.as_path())),
        MountKind::Tmpfs { .. } => None,
    })
}

/// A copy of the mounts at a path that is attached nowhere yet.
fn copy(source: &Path, propagation: PropagationType) -> Result<OwnedFd, StartError> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    let copy = open_tree(CWD, source, flags).map_err(|error| failed(source, error))?;
    set_propagation(copy.as_fd(), propagation).map_err(|error| failed(source, error))?;
    Ok(copy)
}

fn attach(plan: &ContainerPlan, index: usize, copy: &OwnedFd, folder: &Path) -> Result<Source, StartError> {
    let mount = &plan.mounts[index];
    let MountKind::Bind { source: original } = &mount.kind else {
        return Err(StartError::internal("only bind mounts are prepared"));
    };
    let prepared = folder.join(index.to_string());
    let make = || {
        fs::create_dir_all(folder)?;
        if original.is_dir() { fs::create_dir(&prepared) } else { fs::write(&prepared, "") }
    };
    make().map_err(|error| failed(original, error))?;
    move_mount(copy, "", CWD, &prepared, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .map_err(|error| failed(original, error))?;
    Ok(Source { destination: mount.destination.clone(), original: original.clone(), prepared })
}

fn failed(source: &Path, error: impl Into<std::io::Error>) -> StartError {
    let error: std::io::Error = error.into();
    StartError::new(StartErrorKind::MountSource, format!("mount source {}: {error}", source.display()))
}
