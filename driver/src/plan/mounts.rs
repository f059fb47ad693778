//! What of the host is in the container: Nomad's directories, its volumes, the task's own mounts and devices.
//!
//! Always holds: a destination occurs once and is absolute and clean, a mount stands after every mount above it, and every
//! source that a task could have led astray with a link is in the list of paths to be confined.

use std::path::{Path, PathBuf};

use image_store::ImageConfig;
use runtime::plan::{Device, Mount, MountKind, NamedVolume, Propagation};

use super::{
    NomadTask, TaskContext,
    path::{normalize_container_path, normalize_host_path},
};
use crate::config::{Mistakes, MountRequest, MountSource};

/// The mounts, and what must be done about their sources.
#[derive(Debug, Default)]
pub struct Binds {
    /// In the order in which they are made.
    pub mounts: Vec<Mount>,
    /// Sources that must lie in the allocation's directory with all links resolved.
    pub confined: Vec<PathBuf>,
    /// Sources that become directories when they are missing.
    pub create: Vec<PathBuf>,
    /// Named volumes.
    pub volumes: Vec<NamedVolume>,
    /// Places where the image's files stay writable on a read-only root.
    pub writable: Vec<String>,
}

/// A mount with the option it comes from.
struct Named {
    option: String,
    mount: Mount,
}

pub fn decide(context: &TaskContext, mistakes: &Mistakes) -> Binds {
    let task = context.task;
    let mut binds = Binds::default();
    let mut all = standard(task);
    // A task that can write to its allocation's directory could put links where these were before a restart.
    binds.confined.extend(all.iter().filter_map(|named| source(&named.mount)).cloned());
    all.extend(task.mounts.iter().map(|mount| Named {
        option: format!("volume_mount {}", mount.task_path),
        mount: Mount {
            destination: normalize_container_path(&mount.task_path),
            kind: MountKind::Bind { source: mount.host_path.clone() },
            readonly: mount.readonly,
            propagation: mount.propagation,
        },
    }));
    for request in &context.spec.mounts {
        all.extend(requested(context, request, &mut binds, mistakes));
    }
    cover_logs(task, &mut all);
    // Stable: mounts of one depth keep their order, and a mount never hides one that was made before it.
    all.sort_by_key(|named| depth(&named.mount.destination));
    check(&all, mistakes);
    binds.mounts = all.into_iter().map(|named| named.mount).collect();
    binds
}

/// Nomad's three directories, and the logs over the shared one: a task must not be able to exchange its log FIFOs.
fn standard(task: &NomadTask) -> Vec<Named> {
    let place = |variable: &str, default: &str| {
        let path =
            task.env.get(variable).filter(|path| path.starts_with('/')).map(|path| normalize_container_path(path));
        path.filter(|path| path != "/").unwrap_or_else(|| default.to_owned())
    };
    let shared = place("NOMAD_ALLOC_DIR", "/alloc");
    let directory = task_dir(task);
    let named = |name: &str, source: PathBuf, destination: String, readonly| Named {
        option: format!("the task's {name} directory"),
        mount: Mount { destination, kind: MountKind::Bind { source }, readonly, propagation: Propagation::Private },
    };
    vec![
        named("logs", logs_dir(task), format!("{shared}/logs"), true),
        named("alloc", task.alloc_dir.join("alloc"), shared, false),
        named("local", directory.join("local"), place("NOMAD_TASK_DIR", "/local"), false),
        named("secrets", directory.join("secrets"), place("NOMAD_SECRETS_DIR", "/secrets"), false),
    ]
}

fn task_dir(task: &NomadTask) -> PathBuf {
    task.alloc_dir.join(&task.name)
}

fn logs_dir(task: &NomadTask) -> PathBuf {
    task.alloc_dir.join("alloc/logs")
}

fn requested(context: &TaskContext, request: &MountRequest, binds: &mut Binds, mistakes: &Mistakes) -> Option<Named> {
    let (kind, propagation) = match &request.source {
        MountSource::Tmpfs { size, mode, uid, gid } => {
            (MountKind::Tmpfs { size: *size, mode: *mode, uid: *uid, gid: *gid }, Propagation::Private)
        }
        MountSource::Volume { name, copy } => {
            let (directory, destination) =
                (context.node.volumes_dir.join(name), normalize_container_path(&request.target));
            binds.volumes.push(NamedVolume { directory: directory.clone(), destination, copy: *copy });
            (MountKind::Bind { source: directory }, Propagation::Private)
        }
        MountSource::Anonymous => {
            binds.writable.push(normalize_container_path(&request.target));
            return None;
        }
        MountSource::Bind { path, propagation, create } => {
            let source = normalize_host_path(&task_dir(context.task).join(path));
            let inside = source.starts_with(&context.task.alloc_dir);
            if !context.policy.volumes_enabled {
                if !inside {
                    mistakes.add(
                        &request.option,
                        format!("{path:?} lies outside the allocation's directory, and this node does not allow host paths"),
                        "use a path within the task's directory or a `volume` block in the group, or have the operator set `volumes { enabled = true }` in the plugin block",
                    );
                    return None;
                }
                binds.confined.push(source.clone());
            }
            if *create {
                binds.create.push(source.clone());
            }
            (MountKind::Bind { source }, *propagation)
        }
    };
    let mount =
        Mount { destination: normalize_container_path(&request.target), kind, readonly: request.readonly, propagation };
    Some(Named { option: request.option.clone(), mount })
}

/// Keeps the logs read-only also where the task binds them, or a directory above them, a second time.
fn cover_logs(task: &NomadTask, all: &mut Vec<Named>) {
    let logs = logs_dir(task);
    let mut covers = Vec::new();
    for named in all.iter_mut() {
        let Some(source) = source(&named.mount).cloned() else { continue };
        if source.starts_with(&logs) {
            named.mount.readonly = true;
        } else if let Ok(below) = logs.strip_prefix(&source)
            && !named.mount.readonly
        {
            let destination = format!("{}/{}", named.mount.destination.trim_end_matches('/'), below.display());
            covers.push(Named {
                option: named.option.clone(),
                mount: Mount {
                    destination,
                    kind: MountKind::Bind { source: logs.clone() },
                    readonly: true,
                    propagation: Propagation::Private,
                },
            });
        }
    }
    covers.retain(|cover| all.iter().all(|named| named.mount.destination != cover.mount.destination));
    all.extend(covers);
}

fn check(all: &[Named], mistakes: &Mistakes) {
    for (index, named) in all.iter().enumerate() {
        let destination = &named.mount.destination;
        if destination == "/" {
            mistakes.add(&named.option, "would cover the container's root", "choose a destination below /");
        }
        if let Some(earlier) = all[..index].iter().find(|earlier| earlier.mount.destination == *destination) {
            mistakes.add(
                &named.option,
                format!("{destination} is already the destination of {}", earlier.option),
                "choose another destination",
            );
        }
    }
}

fn source(mount: &Mount) -> Option<&PathBuf> {
    match &mount.kind {
        MountKind::Bind { source } => Some(source),
        MountKind::Tmpfs { .. } => None,
    }
}

fn depth(destination: &str) -> usize {
    destination.split('/').filter(|part| !part.is_empty()).count()
}

/// The image's volumes and the task's nameless ones that nothing is mounted on.
pub fn image_volumes(image: &ImageConfig, nameless: &[String], mounts: &[Mount]) -> Vec<String> {
    let mut volumes: Vec<String> =
        image.volumes.iter().chain(nameless).map(|path| normalize_container_path(path)).collect();
    volumes.retain(|path| path != "/" && mounts.iter().all(|mount| mount.destination != *path));
    volumes.sort();
    volumes.dedup();
    volumes
}

/// Devices that the task names, and those that device plugins gave it.
pub fn devices(context: &TaskContext, mistakes: &Mistakes) -> Vec<Device> {
    let TaskContext { spec, task, .. } = *context;
    // The plugin for these gives no device nodes, only this variable for a runtime hook that is not there.
    if task.device_env.contains_key("NVIDIA_VISIBLE_DEVICES") {
        mistakes.add(
            "device",
            "NVIDIA devices are not supported",
            "remove the device block, or run the task with another driver",
        );
    }
    let own = spec.devices.iter().map(|device| Device {
        host_path: normalize_host_path(Path::new(&device.host_path)),
        container_path: normalize_container_path(&device.container_path),
        permissions: device.permissions.clone(),
    });
    let given = task.devices.iter().map(|device| Device {
        host_path: device.host_path.clone(),
        container_path: normalize_container_path(&device.task_path),
        permissions: device.permissions.clone(),
    });
    let mut devices: Vec<Device> = Vec::new();
    for device in own.chain(given) {
        // The last one for a path wins, as in docker.
        devices.retain(|earlier| earlier.container_path != device.container_path);
        devices.push(device);
    }
    devices
}
