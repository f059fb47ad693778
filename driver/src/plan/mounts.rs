//! Mounts of the container: Nomad's directories, Nomad's volumes, and the task's own mounts.
//!
//! Always holds: a destination occurs once, and it is absolute and normalized. A mount comes after every mount above
//! it. Every source in which a task could have put a link is in the list of confined sources.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use image_store::ImageConfig;
use runtime::{
    VolumeKey, VolumeOptions,
    plan::{Mount, MountKind, MountRestriction, NamedVolume, Propagation, Relabel},
};

use super::{
    context::TaskContext,
    identity::container_id,
    nomad_task::NomadTask,
    path::{normalize_container_path, normalize_host_path},
    root::{self, RootDecision},
};
use crate::{
    config::{ErrorCollector, MountRequest, MountSource, Needs, Permission, VOLUMES_ALLOWED, check_volume_type},
    events::Content,
    log_directory,
};

/// The mounts, and the rules for their sources.
#[derive(Debug, Default)]
pub struct MountPlan {
    /// In the order in which they are made.
    pub mounts: Vec<Mount>,
    /// Sources that must lie in the allocation directory after all links are resolved.
    pub confined: Vec<PathBuf>,
    /// Sources that are made as directories if they are missing.
    pub create: Vec<PathBuf>,
    /// Named volumes, and volumes with options.
    pub volumes: Vec<NamedVolume>,
    /// Volumes with options, which must be mounted before the container is made. Each occurs once.
    pub mounted: Vec<MountedVolume>,
    /// The task's volumes without a name, which are removed with the container.
    pub anonymous: Vec<AnonymousVolume>,
    /// The SELinux labels that the sources of mounts get, by their destinations.
    pub relabelled: BTreeMap<String, Relabel>,
    /// What is slow about the mounts, for the job's author.
    pub warnings: Vec<Content>,
}

/// A volume of the task without a name.
#[derive(Debug)]
pub struct AnonymousVolume {
    destination: String,
    /// It starts with the image's files.
    copy: bool,
}

/// A volume with options.
#[derive(Debug, Clone, PartialEq)]
pub struct MountedVolume {
    /// The volume.
    pub key: VolumeKey,
    /// The file system.
    pub options: VolumeOptions,
}

/// A mount with the option that asks for it.
struct Labelled {
    option: String,
    mount: Mount,
    /// The SELinux label of the source.
    relabel: Option<Relabel>,
}

/// Decides all mounts: those of the task, and those that its devices have by their specs.
pub fn decide(
    context: &TaskContext,
    of_devices: &[(Mount, BTreeSet<MountRestriction>)],
    errors: &ErrorCollector,
) -> MountPlan {
    let task = context.task;
    let mut plan = MountPlan::default();
    let mut all = nomad_directories(task);
    // A task can write to its allocation directory, and could have replaced these directories with links before a
    // restart.
    plan.confined.extend(all.iter().filter_map(|labelled| source(&labelled.mount)).cloned());
    plan.confined.push(log_directory::of_tasks(&task.alloc_dir));
    let of_nomad = task.mounts.iter().map(|mount| Labelled {
        option: format!("volume_mount {}", mount.task_path),
        mount: Mount {
            destination: normalize_container_path(&mount.task_path),
            kind: MountKind::Bind { source: mount.host_path.clone() },
            readonly: mount.readonly,
            propagation: mount.propagation,
        },
        relabel: relabel(&mount.selinux_label),
    });
    // A device plugin also reserves the mounts of a spec, for drivers that do not read specs.
    all.extend(of_nomad.filter(|labelled| !of_devices.iter().any(|(mount, _)| is_same(&labelled.mount, mount))));
    for request in &context.spec.mounts {
        all.extend(requested(context, request, &mut plan, errors));
    }
    check_propagation(context, &all, errors);
    all.extend(of_devices.iter().map(|(mount, _)| Labelled {
        option: "a device's spec".to_owned(),
        mount: mount.clone(),
        relabel: None,
    }));
    exchange_logs(task, &mut all, errors);
    // The sort is stable. It puts outer mounts first, so that no mount hides an earlier one.
    all.sort_by_key(|labelled| depth(&labelled.mount.destination));
    check_destinations(&all, errors);
    // A volume with options can be any directory of the node.
    let own = |labelled: &&Labelled| {
        !plan.volumes.iter().any(|volume| volume.mounted && volume.destination == labelled.mount.destination)
    };
    plan.relabelled = all
        .iter()
        .filter(own)
        .filter_map(|labelled| Some((labelled.mount.destination.clone(), labelled.relabel?)))
        .collect();
    plan.mounts = all.into_iter().map(|labelled| labelled.mount).collect();
    plan
}

/// Whether two mounts bind the same source to the same destination.
fn is_same(one: &Mount, other: &Mount) -> bool {
    one.destination == other.destination && source(one).is_some() && source(one) == source(other)
}

/// Nomad's three directories, and the log directory.
fn nomad_directories(task: &NomadTask) -> Vec<Labelled> {
    let destination = |variable: &str, default: &str| {
        let path = task.env.get(variable).filter(|path| path.starts_with('/'));
        let path = path.map(|path| normalize_container_path(path));
        path.filter(|path| path != "/").unwrap_or_else(|| default.to_owned())
    };
    let shared = destination("NOMAD_ALLOC_DIR", "/alloc");
    let task_dir = task_dir(task);
    let directory = |name: &str, source: PathBuf, destination: String| Labelled {
        option: format!("the task's {name} directory"),
        mount: private(destination, source, false),
        // All tasks of the allocation use the same directories for data and logs.
        relabel: Some(if ["local", "secrets"].contains(&name) { Relabel::Private } else { Relabel::Shared }),
    };
    let logs = log_directory::of_nomad(&task.alloc_dir);
    vec![
        directory("logs", logs, format!("{shared}/logs")),
        directory("alloc", task.alloc_dir.join("alloc"), shared),
        directory("local", task_dir.join("local"), destination("NOMAD_TASK_DIR", "/local")),
        directory("secrets", task_dir.join("secrets"), destination("NOMAD_SECRETS_DIR", "/secrets")),
    ]
}

/// The label of a docker option: `z` for all containers, `Z` for one.
fn relabel(option: &str) -> Option<Relabel> {
    match option {
        "z" => Some(Relabel::Shared),
        "Z" => Some(Relabel::Private),
        _ => None,
    }
}

fn task_dir(task: &NomadTask) -> PathBuf {
    task.alloc_dir.join(&task.name)
}

fn private(destination: String, source: PathBuf, readonly: bool) -> Mount {
    Mount { destination, kind: MountKind::Bind { source }, readonly, propagation: Propagation::Private }
}

/// One mount of the task block. Notes in the plan what its source needs.
fn requested(
    context: &TaskContext,
    request: &MountRequest,
    plan: &mut MountPlan,
    errors: &ErrorCollector,
) -> Option<Labelled> {
    let destination = normalize_container_path(&request.target);
    let (kind, propagation) = match &request.source {
        MountSource::Tmpfs { size, mode, uid, gid } => {
            (MountKind::Tmpfs { size: *size, mode: *mode, uid: *uid, gid: *gid }, Propagation::Private)
        }
        MountSource::Volume { name, copy, options } => {
            let stored = context.node.volume_options.get(name).filter(|_| options.is_none());
            if let Some(stored) = stored {
                // The operator may have withdrawn the permission since.
                check_volume_type(&request.option, context.policy, stored, errors);
            }
            let source = match options.as_ref().or(stored) {
                Some(options) => {
                    let volume = MountedVolume { key: VolumeKey::named(name), options: options.clone() };
                    mounted(context, request, volume, *copy, plan, errors)
                }
                None => {
                    let directory = context.node.volumes_dir.join(name);
                    let destination = destination.clone();
                    plan.volumes.push(NamedVolume {
                        directory: directory.clone(),
                        destination,
                        copy: *copy,
                        mounted: false,
                    });
                    directory
                }
            };
            (MountKind::Bind { source }, Propagation::Private)
        }
        MountSource::Anonymous { copy, options: Some(options) } => {
            let container = container_id(&context.task.id, context.node.driver);
            let key = VolumeKey::of_container(&container, plan.mounted.len());
            let volume = MountedVolume { key, options: options.clone() };
            let source = mounted(context, request, volume, *copy, plan, errors);
            (MountKind::Bind { source }, Propagation::Private)
        }
        MountSource::Anonymous { copy, options: None } => {
            plan.anonymous.push(AnonymousVolume { destination, copy: *copy });
            return None;
        }
        MountSource::Image { image, sub_path } => {
            (mounted_image(context, request, image, sub_path.clone(), plan, errors)?, Propagation::Private)
        }
        MountSource::Bind { path, propagation, create } => {
            let source = bind_source(context, &request.option, path, plan, errors)?;
            if *create {
                plan.create.push(source.clone());
            }
            (MountKind::Bind { source }, *propagation)
        }
    };
    let mount = Mount { destination, kind, readonly: request.readonly, propagation };
    // Docker gives named volumes the label for all containers.
    let of_volume = matches!(request.source, MountSource::Volume { .. } | MountSource::Anonymous { .. });
    let by_default = match request.source {
        _ if of_volume => Some(Relabel::Shared),
        // An item of `volumes`.
        MountSource::Bind { create: true, .. } => context.policy.volume_label,
        _ => None,
    };
    let labelled = matches!(mount.kind, MountKind::Bind { .. });
    let relabel = request.relabel.or(by_default).filter(|_| labelled);
    Some(Labelled { option: request.option.clone(), mount, relabel })
}

/// The mount of another image.
fn mounted_image(
    context: &TaskContext,
    request: &MountRequest,
    name: &str,
    sub_path: Option<PathBuf>,
    plan: &mut MountPlan,
    errors: &ErrorCollector,
) -> Option<MountKind> {
    let Some(image) = context.mounted_images.get(name) else {
        errors.add(&request.option, format!("the image {name:?} is not on this node"), "start the task again");
        return None;
    };
    let RootDecision { storage, copy_reason } = root::of_image(context, &request.option, image, errors);
    plan.warnings.extend(copy_reason.map(|reason| Content::CopyingMounted {
        image: name.to_owned(),
        target: request.target.clone(),
        reason,
    }));
    Some(MountKind::Image { layers: image.layers.clone(), storage, sub_path })
}

/// Notes a volume with options in the plan; the directory on which it will be mounted.
fn mounted(
    context: &TaskContext,
    request: &MountRequest,
    volume: MountedVolume,
    copy: bool,
    plan: &mut MountPlan,
    errors: &ErrorCollector,
) -> PathBuf {
    let directory = volume.key.mount_point(&context.node.state_dir);
    plan.volumes.push(NamedVolume {
        directory: directory.clone(),
        destination: normalize_container_path(&request.target),
        // Docker copies into a tmpfs that is unmounted before the task starts.
        copy: copy && volume.options.kind != "tmpfs",
        mounted: true,
    });
    let stored = |options: &VolumeOptions| options.without_secrets();
    match plan.mounted.iter_mut().find(|other| other.key == volume.key) {
        None => plan.mounted.push(volume),
        Some(other) if stored(&other.options) == stored(&volume.options) => {
            // One of them may lack a password.
            if !other.options.forgotten.is_empty() {
                *other = volume;
            }
        }
        Some(_) => errors.add(
            &request.option,
            "the task uses this volume with other options in another `mount`",
            "give both the same `driver_config { options }`, or use another name",
        ),
    }
    directory
}

/// The host path of a bind. Refuses one outside the allocation directory unless the operator allows host paths.
fn bind_source(
    context: &TaskContext,
    option: &str,
    path: &str,
    plan: &mut MountPlan,
    errors: &ErrorCollector,
) -> Option<PathBuf> {
    let source = normalize_host_path(&task_dir(context.task).join(path));
    if context.policy.volumes_enabled {
        return Some(source);
    }
    if !source.starts_with(&context.task.alloc_dir) {
        errors.forbid(
            option,
            format!("{path:?} lies outside the allocation's directory, and this node does not allow host paths"),
            "use a path within the task's directory or a `volume` block in the group, or have the operator set \
             `volumes { enabled = true }` in the plugin block",
            VOLUMES_ALLOWED,
        );
        return None;
    }
    plan.confined.push(source.clone());
    Some(source)
}

/// Refuses mounts with bidirectional propagation unless the operator allows them.
fn check_propagation(context: &TaskContext, all: &[Labelled], errors: &ErrorCollector) {
    if context.policy.allow_shared || context.policy.allow_privileged {
        return;
    }
    for labelled in all.iter().filter(|labelled| labelled.mount.propagation == Propagation::Bidirectional) {
        errors.forbid(
            &labelled.option,
            "this node does not allow the propagation `shared` (`bidirectional`): the task's mounts would appear on it",
            "use `private` or `slave` (`host-to-task`), or have the operator set `volumes { allow_shared = true }` in \
             the plugin block",
            Permission { option: "volumes.allow_shared", needs: Needs::True },
        );
    }
}

/// Puts the log directory of the tasks, with Nomad's in it, at each place where the task would have Nomad's: at its
/// usual place, and where the task binds it or a directory above it. Binds of files in Nomad's become read-only.
///
/// In a bind of the allocation's directory, `alloc` becomes a mount too, so that no task can rename it.
///
/// A mount in a bind with bidirectional propagation appears on the host as well, so that it would hide Nomad's log
/// directory from Nomad. In the allocation's directory such a bind is refused. A directory above the allocation's is
/// bound as it is: the operator has allowed the task to change it.
fn exchange_logs(task: &NomadTask, all: &mut Vec<Labelled>, errors: &ErrorCollector) {
    let of_nomad = log_directory::of_nomad(&task.alloc_dir);
    let of_tasks = log_directory::of_tasks(&task.alloc_dir);
    let mut added: Vec<Labelled> = Vec::new();
    for labelled in all.iter_mut() {
        let Some(source) = source(&labelled.mount).cloned() else { continue };
        let Mount { destination, readonly, propagation, .. } = labelled.mount.clone();
        if propagation == Propagation::Bidirectional {
            if source.starts_with(&task.alloc_dir) && is_related(&source, &of_nomad) {
                errors.add(
                    &labelled.option,
                    format!("the propagation `shared` is not possible for {source:?}, which has Nomad's log directory"),
                    "use the propagation `private` or `slave`, or bind a directory without `alloc/logs`",
                );
            }
            continue;
        }
        let below = of_nomad.strip_prefix(&source).map(|below| below.to_string_lossy().into_owned());
        let logs = match below.as_deref() {
            Ok("") => {
                labelled.mount.kind = MountKind::Bind { source: of_tasks.clone() };
                destination
            }
            Ok(below) => {
                let place = destination.trim_end_matches('/');
                if source == task.alloc_dir {
                    // A mount point cannot be renamed. Otherwise a task could put its own directory at this path.
                    let alloc = task.alloc_dir.join("alloc");
                    let mount = Mount { propagation, ..private(format!("{place}/alloc"), alloc, readonly) };
                    added.push(Labelled { option: labelled.option.clone(), mount, relabel: labelled.relabel });
                }
                let logs = format!("{place}/{below}");
                let mount = private(logs.clone(), of_tasks.clone(), readonly);
                added.push(Labelled { option: labelled.option.clone(), mount, relabel: labelled.relabel });
                logs
            }
            Err(_) => {
                labelled.mount.readonly |= source.starts_with(&of_nomad) && !source.starts_with(&of_tasks);
                continue;
            }
        };
        let nomad = format!("{logs}/{}", log_directory::NOMAD);
        let mount = private(nomad, of_nomad.clone(), true);
        added.push(Labelled { option: labelled.option.clone(), mount, relabel: None });
    }
    for labelled in added {
        if all.iter().all(|other| other.mount.destination != labelled.mount.destination) {
            all.push(labelled);
        }
    }
}

/// Whether one of two paths contains the other.
fn is_related(one: &Path, other: &Path) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

fn check_destinations(all: &[Labelled], errors: &ErrorCollector) {
    for (index, labelled) in all.iter().enumerate() {
        let destination = &labelled.mount.destination;
        if destination == "/" {
            errors.add(&labelled.option, "would cover the container's root", "choose a destination below /");
        }
        if let Some(earlier) = all[..index].iter().find(|earlier| earlier.mount.destination == *destination) {
            errors.add(
                &labelled.option,
                format!("{destination} is already the destination of {}", earlier.option),
                "choose another destination",
            );
        }
    }
}

fn source(mount: &Mount) -> Option<&PathBuf> {
    match &mount.kind {
        MountKind::Bind { source } => Some(source),
        MountKind::Tmpfs { .. } | MountKind::Image { .. } => None,
    }
}

fn depth(destination: &str) -> usize {
    destination.split('/').filter(|part| !part.is_empty()).count()
}

/// The image's volumes and the task's volumes without a name, except those with a mount at their path. The task's take
/// the place of the image's.
pub fn anonymous_volumes(image: &ImageConfig, from_task: &[AnonymousVolume], mounts: &[Mount]) -> Vec<String> {
    let of_task = from_task.iter().map(|volume| volume.destination.clone());
    let mut volumes: Vec<String> =
        image.volumes.iter().map(|path| normalize_container_path(path)).chain(of_task).collect();
    volumes.retain(|path| path != "/" && mounts.iter().all(|mount| mount.destination != *path));
    volumes.sort();
    volumes.dedup();
    volumes
}

/// The volumes without a name that begin empty.
pub fn empty_volumes(from_task: &[AnonymousVolume]) -> Vec<String> {
    from_task.iter().filter(|volume| !volume.copy).map(|volume| volume.destination.clone()).collect()
}
