//! Sources of bind mounts, taken hold of while we are still in the host's mount namespace; afterwards their paths lead nowhere.
//!
//! Confined sources lie in a directory that other tasks write to: what was resolved inside it is kept open, and that is what is mounted, so
//! a link that is exchanged meanwhile changes nothing. A copy of a mount travels as the plan says: what goes both ways can only be a peer of
//! the host's mount if it was copied there. A named volume is not there yet, and is mounted from the data directory by its path.
//!
//! To copy what lies at a path, the kernel looks at every mount that stands on the same one (`copy_tree`), and each of Nomad's tasks adds two.
//! So the directory of confined sources is copied once, and what goes nowhere is copied from that copy, on which little stands.
//!
//! Each is bound to a directory of the task, and the container is given that directory.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{Mode, OFlags, ResolveFlags, open, openat2},
    io::Errno,
    mount::{OpenTreeFlags, UnmountFlags, open_tree, unmount},
};

use super::tree;
use crate::{
    error::{StartError, StartErrorKind},
    plan::{Confined, ContainerPlan, MountKind, Propagation},
    spec::{Source, Sources, host_dev},
    sys::{PropagationType, make_readonly, set_propagation},
};

/// Copies of the host's mounts.
pub(crate) struct HostMounts {
    /// Index in the plan's mounts, the copy.
    copies: Vec<(usize, OwnedFd)>,
    /// The directory of confined sources, from which those that are private are still to be copied.
    confined: Option<OwnedFd>,
}

impl HostMounts {
    /// To be called in the host's mount namespace.
    pub fn open(plan: &ContainerPlan) -> Result<Self, StartError> {
        let directory = plan.confined.as_ref().map(|confined| open_directory(&confined.directory)).transpose()?;
        let mut copies = Vec::new();
        let mut wanted = false;
        for (index, source) in binds(plan) {
            let propagation = plan.mounts[index].propagation;
            // What the container itself is to make, or another one is making, is not there yet.
            if plan.volumes.iter().any(|volume| source.starts_with(&volume.directory)) {
                continue;
            }
            let found = match (confinement(plan, source), &directory) {
                (Some(_), _) if propagation == Propagation::Private => {
                    wanted = true;
                    continue;
                }
                (Some(confined), Some(directory)) => Some(resolve(confined, directory, source)?),
                _ => None,
            };
            copies.push((index, copy(found.as_ref(), source, propagation)?));
        }
        let directory = directory.as_ref().zip(plan.confined.as_ref()).filter(|_| wanted);
        let confined =
            directory.map(|(directory, confined)| copy(Some(directory), &confined.directory, Propagation::Private));
        Ok(Self { copies, confined: confined.transpose()? })
    }

    /// The copy that is mounted over the container's /dev when all else is done.
    pub fn take_dev(&mut self, plan: &ContainerPlan) -> Result<Option<OwnedFd>, StartError> {
        let Some(index) = host_dev(plan) else { return Ok(None) };
        let Some(at) = self.copies.iter().position(|(taken, _)| *taken == index) else { return Ok(None) };
        let (_, copy) = self.copies.swap_remove(at);
        if plan.mounts[index].readonly {
            make_readonly(copy.as_fd()).map_err(|error| failed(Path::new("/dev"), error))?;
        }
        Ok(Some(copy))
    }

    /// Prepares what needs preparing in `directory`, in the mount namespace that the container is made from.
    pub fn prepare(self, plan: &ContainerPlan, directory: &Path) -> Result<Sources, StartError> {
        let mut copies = self.copies;
        if let Some((tree, confined)) = self.confined.as_ref().zip(plan.confined.as_ref()) {
            copies.extend(copy_confined(plan, confined, tree, &directory.join("confined"))?);
        }
        // A bind mount inherits its propagation from its source, and libcontainer leaves that at what the whole root has.
        let mixed = plan.mounts.iter().any(|mount| mount.propagation != Propagation::Private);
        if mixed {
            for (index, source) in binds(plan) {
                let private = plan.mounts[index].propagation == Propagation::Private;
                if private && host_dev(plan) != Some(index) && copies.iter().all(|(taken, _)| *taken != index) {
                    copies.push((index, copy(None, source, Propagation::Private)?));
                }
            }
        }
        copies
            .into_iter()
            .map(|(index, copy)| attach(plan, index, &copy, directory))
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

/// The directory that a source is confined to.
fn confinement<'a>(plan: &'a ContainerPlan, source: &Path) -> Option<&'a Confined> {
    plan.confined.as_ref().filter(|confined| confined.sources.iter().any(|one| one == source))
}

/// Copies private confined sources from a copy of their directory, which stands at `place` for the time that this takes.
fn copy_confined(
    plan: &ContainerPlan,
    confined: &Confined,
    tree: &OwnedFd,
    place: &Path,
) -> Result<Vec<(usize, OwnedFd)>, StartError> {
    let failed = |error: io::Error| failed(&confined.directory, error);
    tree::attach(tree, place).map_err(failed)?;
    let copies = binds(plan)
        .filter(|(index, source)| {
            plan.mounts[*index].propagation == Propagation::Private && confinement(plan, source).is_some()
        })
        .map(|(index, source)| {
            let found = resolve(confined, tree, source)?;
            Ok((index, copy(Some(&found), source, Propagation::Private)?))
        })
        .collect();
    unmount(place, UnmountFlags::DETACH).map_err(|error| failed(error.into()))?;
    copies
}

fn open_directory(directory: &Path) -> Result<OwnedFd, StartError> {
    open(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| failed(directory, error))
}

/// Opens what a confined source leads to.
fn resolve(confined: &Confined, directory: &OwnedFd, source: &Path) -> Result<OwnedFd, StartError> {
    let leads_out = || {
        let text = format!("mount source {} leads out of {}", source.display(), confined.directory.display());
        StartError::new(StartErrorKind::MountSource, text)
    };
    let below = source.strip_prefix(&confined.directory).map_err(|_| leads_out())?;
    let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    loop {
        match openat2(directory, below, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve) {
            // Something was renamed meanwhile, and the kernel could not tell whether it left the directory.
            Err(Errno::AGAIN) => {}
            Err(Errno::XDEV | Errno::LOOP) => return Err(leads_out()),
            result => return result.map_err(|error| failed(source, error)),
        }
    }
}

/// A copy of the mounts at an open file or a path that is attached nowhere yet.
fn copy(found: Option<&OwnedFd>, source: &Path, propagation: Propagation) -> Result<OwnedFd, StartError> {
    let copy = match found {
        Some(found) => {
            let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
            open_tree(found, "", flags | OpenTreeFlags::AT_EMPTY_PATH)
        }
        None => tree::copy(source),
    };
    let copy = copy.map_err(|error| failed(source, error))?;
    let propagation = match propagation {
        Propagation::Private => PropagationType::Private,
        Propagation::HostToContainer => PropagationType::Slave,
        Propagation::Bidirectional => PropagationType::Shared,
    };
    set_propagation(copy.as_fd(), propagation).map_err(|error| failed(source, error))?;
    Ok(copy)
}

fn attach(plan: &ContainerPlan, index: usize, copy: &OwnedFd, directory: &Path) -> Result<Source, StartError> {
    let mount = &plan.mounts[index];
    let MountKind::Bind { source: original } = &mount.kind else {
        return Err(StartError::internal("only bind mounts are prepared"));
    };
    let prepared = directory.join(index.to_string());
    tree::attach(copy, &prepared).map_err(|error| failed(original, error))?;
    Ok(Source { destination: mount.destination.clone(), original: original.clone(), prepared })
}

fn failed(source: &Path, error: impl Into<io::Error>) -> StartError {
    let error: io::Error = error.into();
    StartError::new(StartErrorKind::MountSource, format!("mount source {}: {error}", source.display()))
}
