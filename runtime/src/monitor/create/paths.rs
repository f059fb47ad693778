//! Phase 4: the user, and the places in the root on which everything else is mounted.

use std::{
    fs,
    io::{self, Write},
    os::{fd::OwnedFd, unix::fs::PermissionsExt},
    path::{Path, PathBuf},
};

use host::durable::private_file;

use super::{job::Job, place::check_place, root::RootMounted, streams::LogMounts, volumes::make_volumes};
use crate::{
    error::{Context, StartError, StartErrorKind},
    id_map::IdMap,
    plan::{ContainerPlan, Mount, MountKind, Relabel},
    rootfs::{HeldNetwork, Layers, PreparedBinds, Root, WritableLayer, relabel, relabel_file, relabel_open},
    spec::{PreparedSource, PreparedSources, file_source, is_on_standard_mount},
    state::{TaskDir, private_dir},
    user::{self, MAX_USER_FILE, ResolvedUser},
};

/// Phase 4: the user is resolved, all places of mounts exist, and the logs belong to the user.
pub(super) struct PathsPrepared {
    pub root: Root,
    pub network: HeldNetwork,
    pub layers: Layers,
    /// The mount over the whole of the container's /dev, if the plan has one.
    pub dev: Option<OwnedFd>,
    /// The clones of the binds that are not private, with the places of the binds.
    pub peers: Vec<(OwnedFd, String)>,
    pub sources: PreparedSources,
    /// The volumes without a name.
    pub volumes: Vec<PreparedSource>,
    pub user: ResolvedUser,
    /// The user's uid and gid on the node.
    pub ids_on_node: [u32; 2],
    pub map: Option<IdMap>,
    pub logs: LogMounts,
}

impl RootMounted {
    /// Makes everything that must exist in the root, with the user of the image.
    pub fn prepare_paths(self, job: &Job<'_>, plan: &ContainerPlan) -> Result<PathsPrepared, StartError> {
        let RootMounted { root, mut bind_sources, network, mut layers, images, map, volume_locks, logs } = self;
        failpoint::at("creator-before-paths");
        let peers = bind_sources.take_peers(plan);
        let binds = bind_sources.prepare(plan, &job.mounts(plan), map.as_ref())?;
        let logs = logs.find(job, plan, &binds);
        let PreparedBinds { sources, dev, labelled, .. } = binds;
        let writable = WritableLayer::of(&job.args.data_dir, plan.id.as_str());
        let images = images.prepare(plan, &job.mounts(plan), &writable, map.as_ref(), &mut layers)?;
        let sources = sources.with(&images);
        volume_locks.fill(plan, &root, &sources, map.as_ref())?;
        let user = resolve_user(plan, &root)?;
        let ids_on_node @ [uid, gid] = ids_on_node(&user, map.as_ref())?;
        make_standard_directories(plan, &root)?;
        let volumes = make_volumes(job, plan, &root, map.as_ref())?;
        make_files(job.task, plan, &root)?;
        for mount in plan.mounts.iter().filter(|mount| !is_on_standard_mount(Path::new(&mount.destination))) {
            make_mount_point(mount, &root, &sources)?;
        }
        label_files(job, plan, &labelled, &volumes)?;
        job.outputs.give_to(uid, gid).context(|| "giving the log FIFOs to the user".to_owned())?;
        Ok(PathsPrepared { root, network, layers, dev, peers, sources, volumes, user, ids_on_node, map, logs })
    }
}

fn resolve_user(plan: &ContainerPlan, root: &Root) -> Result<ResolvedUser, StartError> {
    let read = |path: &str| {
        root.read(path, MAX_USER_FILE)
            .map(Option::unwrap_or_default)
            .map_err(|error| StartError::invalid(format!("the image's {path}: {error}")))
    };
    Ok(user::resolve(&plan.user, &plan.groups, &read("/etc/passwd")?, &read("/etc/group")?)?)
}

/// The user's uid and gid on the node. A user namespace must have all ids of the user.
fn ids_on_node(user: &ResolvedUser, map: Option<&IdMap>) -> Result<[u32; 2], StartError> {
    let Some(range) = map.map(IdMap::range) else { return Ok([user.uid, user.gid]) };
    let on_node = |id: u32| {
        range.on_node(id).ok_or_else(|| {
            let text = format!("the task's user has the id {id}, and a user namespace has the ids 0 to 65535");
            StartError::new(StartErrorKind::UserNamespace, text)
        })
    };
    for group in &user.groups {
        on_node(*group)?;
    }
    Ok([on_node(user.uid)?, on_node(user.gid)?])
}

/// The error of a path that cannot be made in the root.
fn in_image(path: &str) -> impl FnOnce(io::Error) -> StartError {
    move |error| StartError::invalid(format!("making {path} in the container: {error}"))
}

/// Makes the mount points of the standard file systems, and the working directory.
fn make_standard_directories(plan: &ContainerPlan, root: &Root) -> Result<(), StartError> {
    for name in ["dev", "proc", "sys"] {
        root.ensure_real_directory(name).map_err(|error| StartError::invalid(error.to_string()))?;
    }
    if !plan.cwd.starts_with('/') {
        return Err(StartError::invalid(format!("working directory {:?}: an absolute path is needed", plan.cwd)));
    }
    root.create_directories(Path::new(&plan.cwd)).map(drop).map_err(in_image(&plan.cwd))
}

/// Gives SELinux labels to the sources of mounts: to the container's own ones, and to those that the plan names, which
/// are open.
fn label_files(
    job: &Job<'_>,
    plan: &ContainerPlan,
    sources: &[(usize, OwnedFd)],
    volumes: &[PreparedSource],
) -> Result<(), StartError> {
    let Some(labels) = &plan.selinux else { return Ok(()) };
    let (private, shared) = (labels.of_files(), labels.of_shared_files());
    relabel(&job.task.files(), &private)?;
    for fifo in job.outputs.fifos() {
        relabel_file(fifo, &private).context(|| "labelling the log FIFOs".to_owned())?;
    }
    for volume in volumes {
        relabel(&volume.prepared, &private)?;
    }
    for (index, source) in sources {
        let destination = &plan.mounts[*index].destination;
        let is_shared = labels.relabelled.get(destination) == Some(&Relabel::Shared);
        let label = if is_shared { &shared } else { &private };
        relabel_open(source, label).map_err(|error| {
            let text = format!("giving the source of the mount {destination} the SELinux label {label}: {error}");
            StartError::new(StartErrorKind::MountSource, text)
        })?;
    }
    Ok(())
}

/// Writes the plan's small files to the task's directory, and makes their places in the root.
fn make_files(task: &TaskDir, plan: &ContainerPlan, root: &Root) -> Result<(), StartError> {
    let write = || -> io::Result<()> {
        private_dir(&task.files())?;
        for (index, (destination, content)) in plan.files.iter().enumerate() {
            let path = file_source(&task.files(), index, destination);
            private_file(&path)?.write_all(content.as_bytes())?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644))?;
        }
        Ok(())
    };
    write().context(|| format!("writing {}", task.files().display()))?;
    for (destination, _) in &plan.files {
        root.create_file(Path::new(destination)).map_err(in_image(destination))?;
    }
    Ok(())
}

/// Makes the place of a mount. libcontainer does not make a place behind a dangling link.
fn make_mount_point(mount: &Mount, root: &Root, sources: &PreparedSources) -> Result<(), StartError> {
    let path = Path::new(&mount.destination);
    match &mount.kind {
        MountKind::Bind { .. } | MountKind::Image { .. } => {
            let source = mount.host_path().unwrap_or(path);
            // A prepared source is what will be mounted, wherever the path of the plan leads by now.
            let found = fs::metadata(sources.prepared_for(&mount.destination).map_or(source, PathBuf::as_path));
            let metadata = found.map_err(|error| {
                let text = format!("mount source {}: {error}", source.display());
                StartError::new(StartErrorKind::MountSource, text)
            })?;
            if metadata.is_dir() { root.create_directories(path).map(drop) } else { root.create_file(path) }
        }
        MountKind::Tmpfs { .. } => root.create_directories(path).map(drop),
    }
    .and_then(|()| check_place(root, path))
    .map_err(in_image(&mount.destination))
}
