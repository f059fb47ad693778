//! The sources of bind mounts, cloned while the creator is still in the host's mount namespace. Afterwards their paths
//! do not exist.
//!
//! - A confined source is in a directory to which other tasks can write. The source is resolved inside that directory
//!   and kept open, and the open file is mounted. So a symbolic link that is exchanged meanwhile has no effect. The
//!   plan can except a directory to which no link and no second mount may lead: it has decided how that directory
//!   appears by its path. Second mounts are detached from the clone.
//! - The propagation is that of the plan. A mount with bidirectional propagation has to be cloned in the host's mount
//!   namespace, because it must be a peer of the host's mount.
//! - A named volume may not exist yet. It is mounted from the data directory by its path. A mounted one exists.
//!
//! When the kernel clones a mount, it walks through all child mounts of that mount (`copy_tree`), and each of Nomad's
//! tasks adds two. So the directory of confined sources is cloned once, and private sources are cloned from that clone,
//! which has few child mounts.
//!
//! Each source is attached to a directory of the task, and the engine gets the path of that directory.

use std::{
    fs, io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Mode, OFlags, ResolveFlags, open, openat2},
    io::Errno,
    mount::{OpenTreeFlags, open_tree},
};

use super::{
    mount_tree::{attach_tree, clone_tree, map_tree},
    second_mounts,
};
use crate::{
    error::{StartError, StartErrorKind},
    id_map::IdMap,
    plan::{BindConfinement, ContainerPlan, MountKind, Propagation},
    spec::{PreparedSource, PreparedSources, host_dev_mount},
    sys::{PropagationType, make_readonly, set_propagation},
};

/// Clones of the sources of a plan's bind mounts.
pub(crate) struct BindSources {
    /// The index in the plan's mounts, and the clone.
    clones: Vec<(usize, OwnedFd)>,
    /// A clone of the directory of confined sources. The private ones are cloned from it later.
    confined: Option<OwnedFd>,
}

impl BindSources {
    /// Clones the sources. It must be called in the host's mount namespace.
    pub fn open(plan: &ContainerPlan) -> Result<Self, StartError> {
        let directory = plan.confined.as_ref().map(|confined| open_directory(&confined.directory)).transpose()?;
        let mut clones = Vec::new();
        let mut has_private_confined = false;
        for (index, source) in binds(plan) {
            let propagation = plan.mounts[index].propagation;
            // A named volume may not exist yet.
            if plan.volumes.iter().any(|volume| !volume.mounted && source.starts_with(&volume.directory)) {
                continue;
            }
            let file = match (confinement(plan, source), &directory) {
                (Some(_), _) if propagation == Propagation::Private => {
                    has_private_confined = true;
                    continue;
                }
                (Some(confined), Some(directory)) => Some(propagated(confined, directory, source)?),
                _ => None,
            };
            clones.push((index, clone_source(file.as_ref(), source, propagation)?));
        }
        let directory = directory.as_ref().zip(plan.confined.as_ref()).filter(|_| has_private_confined);
        let confined = directory
            .map(|(directory, confined)| clone_source(Some(directory), &confined.directory, Propagation::Private));
        Ok(Self { clones, confined: confined.transpose()? })
    }

    /// Takes the clone of the host's /dev, which is mounted over the container's /dev after all other mounts.
    pub fn take_dev(&mut self, plan: &ContainerPlan) -> Result<Option<OwnedFd>, StartError> {
        let Some(index) = host_dev_mount(plan) else { return Ok(None) };
        let Some(position) = self.clones.iter().position(|(cloned, _)| *cloned == index) else { return Ok(None) };
        let (_, tree) = self.clones.swap_remove(position);
        if plan.mounts[index].readonly {
            make_readonly(tree.as_fd()).map_err(|error| failed(Path::new("/dev"), error))?;
        }
        Ok(Some(tree))
    }

    /// Attaches the clones below `directory`, in the mount namespace in which the container is created. With a mapping
    /// of ids, all of them get it.
    pub fn prepare(
        self,
        plan: &ContainerPlan,
        directory: &Path,
        map: Option<&IdMap>,
    ) -> Result<PreparedSources, StartError> {
        let mut clones = self.clones;
        if let Some((tree, confined)) = self.confined.as_ref().zip(plan.confined.as_ref()) {
            clones.extend(clone_confined(plan, confined, tree, &directory.join("confined"))?);
        }
        // A bind mount inherits the propagation of its source, and libcontainer sets only that of the whole root. So if
        // one mount has another propagation, the private ones are prepared here too.
        let mixed = plan.mounts.iter().any(|mount| mount.propagation != Propagation::Private);
        if mixed || map.is_some() {
            for (index, source) in binds(plan) {
                let private = plan.mounts[index].propagation == Propagation::Private;
                if private && host_dev_mount(plan) != Some(index) && clones.iter().all(|(cloned, _)| *cloned != index) {
                    clones.push((index, clone_source(None, source, Propagation::Private)?));
                }
            }
        }
        clones
            .into_iter()
            .map(|(index, tree)| attach(plan, index, &tree, directory, map))
            .collect::<Result<_, _>>()
            .map(PreparedSources)
    }
}

fn binds(plan: &ContainerPlan) -> impl Iterator<Item = (usize, &Path)> + Clone {
    plan.mounts.iter().enumerate().filter_map(|(index, mount)| match &mount.kind {
        MountKind::Bind { source } => Some((index, source.as_path())),
        MountKind::Tmpfs { .. } => None,
    })
}

/// The directory to which a source is confined; `None` if it is not confined.
fn confinement<'a>(plan: &'a ContainerPlan, source: &Path) -> Option<&'a BindConfinement> {
    plan.confined.as_ref().filter(|confined| confined.sources.iter().any(|confined| confined == source))
}

/// Clones the private confined sources from a clone of their directory. The kernel clones attached mounts only, so the
/// clone is attached at `path`. It stays there until the mount namespace ends: an unmount waits for all processors.
fn clone_confined(
    plan: &ContainerPlan,
    confined: &BindConfinement,
    tree: &OwnedFd,
    path: &Path,
) -> Result<Vec<(usize, OwnedFd)>, StartError> {
    let failed = |error: io::Error| failed(&confined.directory, error);
    attach_tree(tree, path).map_err(failed)?;
    let sources = binds(plan).filter(|(index, source)| {
        plan.mounts[*index].propagation == Propagation::Private && confinement(plan, source).is_some()
    });
    let excepted = confined.no_links_to.as_ref().and_then(|excepted| excepted.strip_prefix(&confined.directory).ok());
    if let Some(excepted) = excepted {
        let second = second_mounts::find(path, excepted).map_err(failed)?;
        if !second.is_empty() {
            for (_, source) in sources.clone() {
                refuse_second(&second, &resolve(confined, tree, source)?, source)?;
            }
            second_mounts::detach(path, excepted).map_err(failed)?;
        }
    }
    sources
        .map(|(index, source)| {
            let file = resolve(confined, tree, source)?;
            Ok((index, clone_source(Some(&file), source, Propagation::Private)?))
        })
        .collect()
}

/// Refuses a source at or below the path of a second mount.
fn refuse_second(second: &[PathBuf], file: &OwnedFd, source: &Path) -> Result<(), StartError> {
    let path = path_of(file).map_err(|error| failed(source, error))?;
    if second.iter().any(|second| path.starts_with(second)) {
        let text = format!(
            "mount source {} is in a second mount of a directory that tasks may bind only by its own path",
            source.display()
        );
        return Err(StartError::new(StartErrorKind::MountSource, text));
    }
    Ok(())
}

/// Opens a source whose mount gets the host's later mounts. Other programs may make second mounts at any time, but not
/// in the directories that the plan names.
fn propagated(confined: &BindConfinement, directory: &OwnedFd, source: &Path) -> Result<OwnedFd, StartError> {
    let file = resolve(confined, directory, source)?;
    let path = real_path(confined, directory, &file, source)?;
    if confined.no_links_to.is_none() || confined.propagated.iter().any(|allowed| path.starts_with(allowed)) {
        return Ok(file);
    }
    let allowed: Vec<String> = confined.propagated.iter().map(|path| path.display().to_string()).collect();
    let text = format!(
        "mount source {} cannot have the propagation slave or shared, which are possible in {}: use private",
        source.display(),
        allowed.join(" and ")
    );
    Err(StartError::new(StartErrorKind::MountSource, text))
}

fn open_directory(directory: &Path) -> Result<OwnedFd, StartError> {
    open(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| failed(directory, error))
}

/// The path of an open file, as the plan would name it.
fn real_path(
    confined: &BindConfinement,
    directory: &OwnedFd,
    file: &OwnedFd,
    source: &Path,
) -> Result<PathBuf, StartError> {
    let paths = path_of(file).and_then(|file| Ok((file, path_of(directory)?)));
    let (file, root) = paths.map_err(|error| failed(source, error))?;
    Ok(confined.directory.join(file.strip_prefix(root).map_err(|_| leads_out(confined, source))?))
}

fn path_of(file: &OwnedFd) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

fn leads_out(confined: &BindConfinement, source: &Path) -> StartError {
    let text = format!("mount source {} leads out of {}", source.display(), confined.directory.display());
    StartError::new(StartErrorKind::MountSource, text)
}

/// Opens the file to which a confined source leads.
fn resolve(confined: &BindConfinement, directory: &OwnedFd, source: &Path) -> Result<OwnedFd, StartError> {
    let leads_out = || leads_out(confined, source);
    let below = source.strip_prefix(&confined.directory).map_err(|_| leads_out())?;
    let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
    let open = |more: ResolveFlags| {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | more;
        loop {
            match openat2(directory, below, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve) {
                // A rename happened meanwhile, so the kernel could not tell whether the path stays inside the
                // directory.
                Err(Errno::AGAIN) => {}
                result => return result,
            }
        }
    };
    let refused = |error| match error {
        Errno::XDEV | Errno::LOOP => leads_out(),
        error => failed(source, error),
    };
    let Some(excepted) = &confined.no_links_to else { return open(ResolveFlags::empty()).map_err(refused) };
    match open(ResolveFlags::NO_SYMLINKS) {
        Err(Errno::LOOP) => {}
        result => return result.map_err(refused),
    }
    let file = open(ResolveFlags::empty()).map_err(refused)?;
    let real = real_path(confined, directory, &file, source)?;
    if real.starts_with(excepted) || excepted.starts_with(&real) {
        let text = format!(
            "mount source {} leads through a link to {}, which tasks may bind only by its own path",
            source.display(),
            real.display()
        );
        return Err(StartError::new(StartErrorKind::MountSource, text));
    }
    Ok(file)
}

/// Clones the mounts at an open file, or at a path, with this propagation.
fn clone_source(file: Option<&OwnedFd>, source: &Path, propagation: Propagation) -> Result<OwnedFd, StartError> {
    let tree = match file {
        Some(file) => {
            let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
            open_tree(file, "", flags | OpenTreeFlags::AT_EMPTY_PATH)
        }
        None => clone_tree(source),
    };
    let tree = tree.map_err(|error| failed(source, error))?;
    let propagation = match propagation {
        Propagation::Private => PropagationType::Private,
        Propagation::HostToContainer => PropagationType::Slave,
        Propagation::Bidirectional => PropagationType::Shared,
    };
    set_propagation(tree.as_fd(), propagation).map_err(|error| failed(source, error))?;
    Ok(tree)
}

fn attach(
    plan: &ContainerPlan,
    index: usize,
    tree: &OwnedFd,
    directory: &Path,
    map: Option<&IdMap>,
) -> Result<PreparedSource, StartError> {
    let mount = &plan.mounts[index];
    let MountKind::Bind { source: original } = &mount.kind else {
        return Err(StartError::internal("only bind mounts are prepared"));
    };
    map_tree(tree, map, || format!("mount source {}", original.display()))?;
    let prepared = directory.join(index.to_string());
    attach_tree(tree, &prepared).map_err(|error| failed(original, error))?;
    Ok(PreparedSource { destination: mount.destination.clone(), original: original.clone(), prepared })
}

fn failed(source: &Path, error: impl Into<io::Error>) -> StartError {
    let error: io::Error = error.into();
    StartError::new(StartErrorKind::MountSource, format!("mount source {}: {error}", source.display()))
}
