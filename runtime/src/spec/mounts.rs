//! The container's mounts, in the order in which they are made.

use std::path::{Path, PathBuf};

use oci_spec::runtime::{Mount as OciMount, MountBuilder};

use super::{
    cgroup_view::CGROUP_DIR, destinations::host_dev_mount, error::SpecError, inputs::SpecInputs,
    prepared_sources::PreparedSource,
};
use crate::{
    cgroup::Version,
    plan::{ContainerPlan, Mount, MountKind, MountRestriction, Propagation},
};

/// All mounts of a container.
pub(super) fn mounts(plan: &ContainerPlan, inputs: &SpecInputs<'_>) -> Result<Vec<OciMount>, SpecError> {
    let mut list = standard(plan)?;
    list.extend(cgroups(plan, inputs)?);
    let mut own = Vec::new();
    let planned = |destination: &str| plan.mounts.iter().any(|mount| mount.destination == destination);
    for (index, (destination, _)) in plan.files.iter().enumerate() {
        if !planned(destination) {
            own.push(bind(&file_source(inputs.files, index, destination), destination, false, Propagation::Private)?);
        }
    }
    for mount in &plan.mounts {
        own.push(requested(plan, mount)?);
    }
    insert_volumes(&mut own, inputs.volumes)?;
    list.extend(own);
    Ok(list)
}

/// Inserts the volumes, outer ones first, each before the first mount that is below it. A volume below a mount comes
/// after that mount.
fn insert_volumes(mounts: &mut Vec<OciMount>, volumes: &[PreparedSource]) -> Result<(), SpecError> {
    let mut volumes: Vec<&PreparedSource> = volumes.iter().collect();
    volumes.sort_by_key(|volume| Path::new(&volume.destination).components().count());
    for volume in volumes {
        let below = mounts.iter().position(|mount| mount.destination().starts_with(&volume.destination));
        let mount = bind(&volume.original, &volume.destination, false, Propagation::Private)?;
        mounts.insert(below.unwrap_or(mounts.len()), mount);
    }
    Ok(())
}

/// The path on the host of one of the plan's small files.
pub(crate) fn file_source(directory: &Path, index: usize, destination: &str) -> PathBuf {
    let name = destination.rsplit('/').next().unwrap_or_default();
    directory.join(format!("{index}-{name}"))
}

/// The mounts that every container has.
fn standard(plan: &ContainerPlan) -> Result<Vec<OciMount>, SpecError> {
    let shm_size = format!("size={}", plan.shm_size);
    let sys_access = if plan.security.privileged { "rw" } else { "ro" };
    let mut list = vec![
        mount("proc", "proc", "/proc", &["nosuid", "noexec", "nodev"])?,
        mount("tmpfs", "tmpfs", "/dev", &["nosuid", "strictatime", "mode=755", "size=65536k"])?,
        mount(
            "devpts",
            "devpts",
            "/dev/pts",
            &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
        )?,
        mount("sysfs", "sysfs", "/sys", &["nosuid", "noexec", "nodev", sys_access])?,
    ];
    // In the host's IPC namespace this shows the host's message queues.
    list.push(mount("mqueue", "mqueue", "/dev/mqueue", &["nosuid", "noexec", "nodev"])?);
    if plan.namespaces.private_ipc && plan.shm_size == 0 {
        // No mount: for the kernel, a size of 0 means no limit.
    } else if plan.namespaces.private_ipc {
        list.push(mount("tmpfs", "shm", "/dev/shm", &["nosuid", "noexec", "nodev", "mode=1777", &shm_size])?);
    } else {
        list.push(bind(Path::new("/dev/shm"), "/dev/shm", false, Propagation::Private)?);
    }
    let host_dev = host_dev_mount(plan).is_some();
    list.retain(|standard| {
        let replaced = plan.mounts.iter().any(|own| Path::new(&own.destination) == standard.destination());
        let hidden = host_dev && standard.destination().starts_with("/dev");
        !replaced && !hidden
    });
    Ok(list)
}

/// The mounts of the container's own cgroups, because programs size themselves by them.
fn cgroups(plan: &ContainerPlan, inputs: &SpecInputs<'_>) -> Result<Vec<OciMount>, SpecError> {
    const FLAGS: [&str; 3] = ["nosuid", "noexec", "nodev"];
    let access = if plan.security.privileged { "rw" } else { "ro" };
    match (inputs.cgroup_version, inputs.visible_cgroups) {
        // Without a cgroup namespace, a mount of the file system would show the cgroups of all tasks.
        (Version::V2, [(_, group)]) => Ok(vec![bind(group, CGROUP_DIR, true, Propagation::Private)?]),
        (Version::V2, _) => Ok(vec![mount("cgroup", "cgroup", CGROUP_DIR, &[&FLAGS[..], &[access]].concat())?]),
        (Version::V1, []) => Ok(Vec::new()),
        (Version::V1, groups) => {
            let directory = mount("tmpfs", "tmpfs", CGROUP_DIR, &[&FLAGS[..], &["mode=755"]].concat())?;
            let mut list = vec![directory];
            for (name, group) in groups {
                list.push(bind(group, &format!("{CGROUP_DIR}/{name}"), access == "ro", Propagation::Private)?);
            }
            Ok(list)
        }
    }
}

/// A mount of the plan.
fn requested(plan: &ContainerPlan, wanted: &Mount) -> Result<OciMount, SpecError> {
    match &wanted.kind {
        MountKind::Bind { source } => {
            let mut mount = bind(source, &wanted.destination, wanted.readonly, wanted.propagation)?;
            let directory = plan.confined.as_ref().filter(|confined| confined.restricted);
            if directory.is_some_and(|confined| source.starts_with(&confined.directory))
                && let Some(options) = mount.options_mut()
            {
                options.extend(["rnosuid", "rnodev"].map(str::to_owned));
            }
            if let Some(restrictions) = plan.mount_restrictions.get(&wanted.destination)
                && let Some(options) = mount.options_mut()
            {
                let further = restrictions.iter().map(|restriction| recursive_option(*restriction).to_owned());
                options.extend(further);
            }
            Ok(mount)
        }
        MountKind::Image { layers, .. } => {
            let source =
                layers.first().ok_or_else(|| SpecError::MountedImageWithoutLayers(wanted.destination.clone()))?;
            let mut mount = bind(source, &wanted.destination, true, Propagation::Private)?;
            if let Some(options) = mount.options_mut() {
                options.extend(["rnosuid", "rnodev"].map(str::to_owned));
            }
            Ok(mount)
        }
        MountKind::Tmpfs { size, mode, uid, gid } => {
            let mut options = vec!["nosuid".to_owned(), "noexec".to_owned(), "nodev".to_owned()];
            options.extend(size.map(|size| format!("size={size}")));
            options.push(format!("mode={:o}", mode.unwrap_or(0o1777)));
            options.extend(uid.map(|uid| format!("uid={uid}")));
            options.extend(gid.map(|gid| format!("gid={gid}")));
            if wanted.readonly {
                options.push("ro".to_owned());
            }
            let options: Vec<&str> = options.iter().map(String::as_str).collect();
            mount("tmpfs", "tmpfs", &wanted.destination, &options)
        }
    }
}

/// The option that restricts a bind and everything mounted below it.
fn recursive_option(restriction: MountRestriction) -> &'static str {
    match restriction {
        MountRestriction::Nodev => "rnodev",
        MountRestriction::Noexec => "rnoexec",
        MountRestriction::Nosuid => "rnosuid",
    }
}

fn bind(source: &Path, destination: &str, readonly: bool, propagation: Propagation) -> Result<OciMount, SpecError> {
    let mut options = vec!["rbind"];
    if readonly {
        options.push("rro");
    }
    options.push(match propagation {
        Propagation::Private => "rprivate",
        Propagation::HostToContainer => "rslave",
        Propagation::Bidirectional => "rshared",
    });
    let options: Vec<String> = options.into_iter().map(str::to_owned).collect();
    Ok(MountBuilder::default().typ("bind").source(source).destination(destination).options(options).build()?)
}

fn mount(typ: &str, source: &str, destination: &str, options: &[&str]) -> Result<OciMount, SpecError> {
    let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
    Ok(MountBuilder::default().typ(typ).source(source).destination(destination).options(options).build()?)
}

/// The propagation of the whole root, for other runtimes than ours.
pub(super) fn root_propagation(plan: &ContainerPlan) -> &'static str {
    let any = |wanted: Propagation| plan.mounts.iter().any(|mount| mount.propagation == wanted);
    if any(Propagation::Bidirectional) {
        "shared"
    } else if any(Propagation::HostToContainer) {
        "slave"
    } else {
        "private"
    }
}
