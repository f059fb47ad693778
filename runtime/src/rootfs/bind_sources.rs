//! The sources of bind mounts, cloned while the creator is still in the host's mount namespace. Afterwards their paths
//! do not exist.
//!
//! - A confined source is in a directory to which other tasks can write. The source is resolved inside that directory
//!   and kept open, and the open file is mounted. So a symbolic link that is exchanged meanwhile has no effect. The
//!   plan can except a directory to which no link and no second mount may lead: it has decided how that directory
//!   appears by its path. Second mounts are detached from the clone.
//! - All binds are private while the container is built. Otherwise mounts that are made in a bind with bidirectional
//!   propagation would appear on the host, and stay there. For a bind with another propagation there is a second clone,
//!   which is a peer or a slave of the host's mount and is never attached. The bind joins the groups of this clone
//!   after all other mounts were made (`command::propagation`).
//! - A named volume may not exist yet. It is mounted from the data directory by its path. A mounted one exists.
//!
//! When the kernel clones a mount, it walks through all child mounts of that mount (`copy_tree`), and each of Nomad's
//! tasks adds two. So the directory of confined sources is cloned once, and private sources are cloned from that clone,
//! which has few child mounts.
//!
//! Each source is attached to a directory of the task, and the engine gets the path of that directory. A source that
//! gets an SELinux label stays open too: the directory that was checked is the one that is labelled.

use std::{
    fs, io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use host::resolve::open_below;
use rustix::{
    fs::{Mode, OFlags, ResolveFlags, open},
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
    mountinfo::propagates,
    plan::{BindConfinement, ContainerPlan, MountKind, Propagation},
    selinux::may_be_relabelled,
    spec::{PreparedSource, PreparedSources, host_dev_mount},
    sys::{PropagationType, kernel_joins_groups, make_readonly, set_propagation},
};

/// Clones of the sources of a plan's bind mounts.
pub(crate) struct BindSources {
    /// The index in the plan's mounts, and the clone.
    clones: Vec<(usize, OwnedFd)>,
    /// The same for the second clones of the binds that are not private.
    peers: Vec<(usize, OwnedFd)>,
    /// A clone of the directory of confined sources. The private ones are cloned from it later.
    confined: Option<OwnedFd>,
    /// The same for the sources that get an SELinux label, open as they are on the host. On a clone with mapped ids,
    /// the label of a file cannot be changed whose owner the mapping lacks.
    labelled: Vec<(usize, OwnedFd)>,
}

/// The sources in the mount namespace in which the container is created.
pub(crate) struct PreparedBinds {
    pub sources: PreparedSources,
    /// The mount over the whole of the container's /dev, if the plan has one.
    pub dev: Option<OwnedFd>,
    /// The sources that get an SELinux label: the index in the plan's mounts, and the file or directory.
    pub labelled: Vec<(usize, OwnedFd)>,
    /// The attached clone of the directory of confined sources, if there is one.
    confined: Option<OwnedFd>,
}

impl PreparedBinds {
    /// An `O_PATH` handle on a file in the clone of the directory of confined sources, by its path on the host. `None`
    /// if there is no such file, or if a link leads there.
    pub fn open_confined(&self, plan: &ContainerPlan, path: &Path) -> Option<OwnedFd> {
        let (directory, confined) = self.confined.as_ref().zip(plan.confined.as_ref())?;
        let below = path.strip_prefix(&confined.directory).ok()?;
        open_below(directory, below, OFlags::PATH, ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS).ok()
    }
}

impl BindSources {
    /// Clones the sources. It must be called in the host's mount namespace.
    pub fn open(plan: &ContainerPlan) -> Result<Self, StartError> {
        let directory = plan.confined.as_ref().map(|confined| open_directory(&confined.directory)).transpose()?;
        let (mut clones, mut peers, mut labelled) = (Vec::new(), Vec::new(), Vec::new());
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
                _ if gets_label(plan, index) => Some(open_source(source)?),
                _ => None,
            };
            if propagation != Propagation::Private && needs_peer(file.as_ref(), source)? {
                peers.push((index, clone_source(file.as_ref(), source, propagation)?));
            }
            clones.push((index, clone_source(file.as_ref(), source, Propagation::Private)?));
            if let Some(file) = file.filter(|_| gets_label(plan, index)) {
                may_get_label(source, &path_of(&file).map_err(|error| failed(source, error))?)?;
                labelled.push((index, file));
            }
        }
        let directory = directory.as_ref().zip(plan.confined.as_ref()).filter(|_| has_private_confined);
        let confined = directory
            .map(|(directory, confined)| clone_source(Some(directory), &confined.directory, Propagation::Private));
        Ok(Self { clones, peers, confined: confined.transpose()?, labelled })
    }

    /// Whether the clone of the directory of confined sources has this path of the host.
    pub fn confines(&self, plan: &ContainerPlan, path: &Path) -> bool {
        let directory = plan.confined.as_ref().filter(|_| self.confined.is_some());
        directory.is_some_and(|confined| path.starts_with(&confined.directory))
    }

    /// Takes the clones of the binds that are not private, each with the bind's place in the container.
    pub fn take_peers(&mut self, plan: &ContainerPlan) -> Vec<(OwnedFd, String)> {
        let peers = self.peers.drain(..);
        peers.map(|(index, tree)| (tree, plan.mounts[index].destination.clone())).collect()
    }

    /// Attaches the clones below `directory`, in the mount namespace in which the container is created. With a mapping
    /// of ids, all of them get it. The mount over the container's /dev is not attached, because it comes after all
    /// other mounts.
    pub fn prepare(
        self,
        plan: &ContainerPlan,
        directory: &Path,
        map: Option<&IdMap>,
    ) -> Result<PreparedBinds, StartError> {
        let Self { mut clones, mut labelled, confined, .. } = self;
        if let Some((tree, confined)) = confined.as_ref().zip(plan.confined.as_ref()) {
            for (index, tree, file) in clone_confined(plan, confined, tree, &directory.join("confined"))? {
                clones.push((index, tree));
                labelled.extend(gets_label(plan, index).then_some((index, file)));
            }
        }
        // Named volumes, which exist by now.
        for (index, source) in binds(plan).filter(|(index, _)| host_dev_mount(plan) != Some(*index)) {
            if clones.iter().any(|(cloned, _)| *cloned == index) {
                continue;
            }
            if map.is_some() {
                clones.push((index, clone_source(None, source, Propagation::Private)?));
            }
            if gets_label(plan, index) {
                labelled.push((index, open_source(source)?));
            }
        }
        // A tmpfs over /dev is refused with the other facts about the plan.
        let over_dev = host_dev_mount(plan).filter(|index| matches!(plan.mounts[*index].kind, MountKind::Bind { .. }));
        let dev = over_dev.map(|index| take_dev(plan, index, &mut clones)).transpose()?;
        let prepared = clones.into_iter().map(|(index, tree)| attach(plan, index, &tree, directory, map));
        let sources = PreparedSources(prepared.collect::<Result<_, _>>()?);
        Ok(PreparedBinds { sources, dev, labelled, confined })
    }
}

/// Takes the mount over the container's /dev out of the clones.
fn take_dev(plan: &ContainerPlan, index: usize, clones: &mut Vec<(usize, OwnedFd)>) -> Result<OwnedFd, StartError> {
    let Some(position) = clones.iter().position(|(cloned, _)| *cloned == index) else {
        return Err(StartError::invalid("a named volume cannot be mounted over /dev: bind a directory instead"));
    };
    let (_, tree) = clones.swap_remove(position);
    if plan.mounts[index].readonly {
        make_readonly(tree.as_fd()).map_err(|error| failed(Path::new("/dev"), error))?;
    }
    Ok(tree)
}

fn binds(plan: &ContainerPlan) -> impl Iterator<Item = (usize, &Path)> + Clone {
    plan.mounts.iter().enumerate().filter_map(|(index, mount)| match &mount.kind {
        MountKind::Bind { source } => Some((index, source.as_path())),
        MountKind::Tmpfs { .. } | MountKind::Image { .. } => None,
    })
}

/// The directory to which a source is confined; `None` if it is not confined.
fn confinement<'a>(plan: &'a ContainerPlan, source: &Path) -> Option<&'a BindConfinement> {
    plan.confined.as_ref().filter(|confined| confined.sources.iter().any(|confined| confined == source))
}

/// Whether the plan gives the source of a mount an SELinux label.
fn gets_label(plan: &ContainerPlan, index: usize) -> bool {
    plan.selinux.as_ref().is_some_and(|labels| labels.relabelled.contains_key(&plan.mounts[index].destination))
}

/// Refuses to change the label of a directory of the node. `real` is the path of the open source on the host.
fn may_get_label(source: &Path, real: &Path) -> Result<(), StartError> {
    if may_be_relabelled(real) {
        return Ok(());
    }
    let text = format!(
        "mount source {}: {} keeps its SELinux label, which the node needs; remove `z` and `Z` from the mount",
        source.display(),
        real.display()
    );
    Err(StartError::new(StartErrorKind::MountSource, text))
}

/// Opens a source that is not confined.
fn open_source(source: &Path) -> Result<OwnedFd, StartError> {
    open(source, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(|error| failed(source, error))
}

/// Clones the private confined sources from a clone of their directory. The kernel clones attached mounts only, so the
/// clone is attached at `path`. It stays there until the mount namespace ends: an unmount waits for all processors. The
/// result has the index in the plan's mounts, the clone, and the open source.
fn clone_confined(
    plan: &ContainerPlan,
    confined: &BindConfinement,
    tree: &OwnedFd,
    path: &Path,
) -> Result<Vec<(usize, OwnedFd, OwnedFd)>, StartError> {
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
            if gets_label(plan, index) {
                may_get_label(source, &real_path(confined, tree, &file, source)?)?;
            }
            Ok((index, clone_source(Some(&file), source, Propagation::Private)?, file))
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
        open_below(directory, below, OFlags::PATH, ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | more)
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

/// Whether a bind of this source needs a peer. Where the kernel cannot join groups, only a source that propagates does:
/// then the start fails, because the bind would lose the propagation.
fn needs_peer(file: Option<&OwnedFd>, source: &Path) -> Result<bool, StartError> {
    if kernel_joins_groups() {
        return Ok(true);
    }
    let path = file.map_or_else(|| fs::canonicalize(source), path_of);
    let found = path.and_then(|path| Ok(propagates(&fs::read("/proc/self/mountinfo")?, &path)));
    found.map_err(|error| failed(source, error))
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

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::chown, thread};

    use rustix::{
        fs::lgetxattr,
        mount::{MountPropagationFlags, mount_change},
    };
    use serde_json::json;

    use super::*;
    use crate::{
        plan::IdRange,
        rootfs::relabel::{relabel, relabel_open},
    };

    const LABEL: &str = "system_u:object_r:container_file_t:s0";

    /// A plan with one bind, whose source gets a label.
    fn plan(source: &Path) -> ContainerPlan {
        let mut plan: ContainerPlan =
            serde_json::from_str(include_str!("../../tests/records/plan.json")).expect("a plan");
        (plan.confined, plan.volumes) = (None, Vec::new());
        plan.mounts.retain(|mount| matches!(mount.kind, MountKind::Bind { .. }));
        plan.mounts.truncate(1);
        plan.mounts[0].kind = MountKind::Bind { source: source.to_owned() };
        plan.mounts[0].propagation = Propagation::Private;
        plan.mounts[0].destination = "/data".to_owned();
        let labels = json!({ "process": "u:r:t:s0", "file": LABEL, "own_categories": false,
            "relabelled": { "/data": "shared" } });
        plan.selinux = Some(serde_json::from_value(labels).expect("labels"));
        plan
    }

    fn is_labelled(path: &Path) -> bool {
        let mut value = [0; 256];
        let length = lgetxattr(path, c"security.selinux", value.as_mut_slice());
        length.is_ok_and(|length| value[..length].starts_with(LABEL.as_bytes()))
    }

    /// Prepares the source with mapped ids, and labels it as the creator does. True if this machine can do that.
    fn label_mapped(source: &Path, place: &Path) -> Result<bool, StartError> {
        let Ok(map) = IdMap::new(IdRange { first: 1 << 30 }) else { return Ok(false) };
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        if crate::sys::unshare_mounts().is_err() || mount_change("/", private).is_err() {
            return Ok(false);
        }
        let plan = plan(source);
        let prepared = match BindSources::open(&plan)?.prepare(&plan, place, Some(&map)) {
            Err(error) if error.kind == StartErrorKind::UserNamespace => return Ok(false),
            prepared => prepared?,
        };
        let [(0, file)] = prepared.labelled.as_slice() else { panic!("one source gets a label") };
        let mapped = prepared.sources.prepared_for("/data").expect("prepared");
        assert!(relabel(mapped, LABEL).is_err(), "through the clone, a file would keep its label");
        relabel_open(file, LABEL).expect("labelled");
        Ok(true)
    }

    #[test]
    #[allow(clippy::print_stdout, reason = "a skipped test says why")]
    fn files_of_ids_that_the_mapping_lacks_are_labelled() {
        let directory = tempfile::tempdir().expect("a directory");
        let (source, place) = (directory.path().join("source"), directory.path().join("place"));
        fs::create_dir(&source).expect("a directory");
        let file = source.join("file");
        fs::write(&file, "").expect("written");
        let probe = directory.path().join("probe");
        fs::write(&probe, "").expect("written");
        if chown(&file, Some(70_000), Some(70_000)).is_err() || relabel(&probe, LABEL).is_err() || !is_labelled(&probe)
        {
            println!("skipped: this test may not change owners or labels");
            return;
        }
        let of_thread = source.clone();
        let labelled = thread::spawn(move || label_mapped(&of_thread, &place)).join().expect("a thread");
        if !labelled.expect("prepared") {
            println!("skipped: this machine maps no ids of mounts here");
            return;
        }
        assert!(is_labelled(&source) && is_labelled(&file));
    }

    #[test]
    fn the_label_of_a_directory_of_the_node_stays_whatever_path_leads_there() {
        let directory = tempfile::tempdir().expect("a directory");
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("/etc", &link).expect("a link");
        for source in [Path::new("/etc"), Path::new("/usr/../etc"), &link] {
            let error = BindSources::open(&plan(source)).err().expect("a refusal");
            assert!(error.message.contains("/etc keeps its SELinux label"), "{error}");
        }
    }
}
