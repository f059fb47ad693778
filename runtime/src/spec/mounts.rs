//! The container's mounts, in the order in which they are made.

use std::path::{Path, PathBuf};

use oci_spec::runtime::{Mount as OciMount, MountBuilder};

use super::{error::SpecError, inputs::SpecInputs};
use crate::{
    cgroup::Version,
    plan::{ContainerPlan, Mount, MountKind, Propagation},
};

/// Mount sources that were prepared to stand in for the plan's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Sources(pub Vec<Source>);

/// One prepared source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Source {
    pub destination: String,
    pub original: PathBuf,
    pub prepared: PathBuf,
}

impl Sources {
    /// What is mounted on a destination in place of the plan's source.
    pub fn stand_in(&self, destination: &str) -> Option<&PathBuf> {
        self.0.iter().find(|source| source.destination == destination).map(|source| &source.prepared)
    }

    pub(super) fn replace(&self, mounts: &mut [OciMount]) {
        for mount in mounts {
            let prepared = self.0.iter().find(|source| {
                mount.destination() == Path::new(&source.destination)
                    && mount.source().as_ref() == Some(&source.original)
            });
            if let Some(source) = prepared {
                mount.set_source(Some(source.prepared.clone()));
            }
        }
    }
}

/// Files of procfs that a mount may cover: they show a program its limits, and nothing that confines a container depends on them.
const COVERABLE: [&str; 8] = [
    "/proc/cpuinfo",
    "/proc/diskstats",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/slabinfo",
    "/proc/stat",
    "/proc/swaps",
    "/proc/uptime",
];

/// Whether a mount of the plan may stand there: not over procfs, by which containers are confined and their programs look at
/// themselves.
pub(crate) fn may_be_covered(destination: &Path) -> bool {
    !destination.starts_with("/proc") || COVERABLE.iter().any(|file| destination == Path::new(file))
}

/// The mount of a directory of the host, its /dev most likely, over the whole of the container's /dev: what Nomad gives to CSI plugins.
///
/// libcontainer would make its nodes and links in that directory, on the host. It is given a /dev of the container's own, and this is
/// mounted over it at the very end.
pub(crate) fn host_dev(plan: &ContainerPlan) -> Option<usize> {
    plan.mounts.iter().position(|mount| Path::new(&mount.destination) == Path::new("/dev"))
}

/// Whether a path is on one of the file systems that are mounted before the plan's mounts.
pub(crate) fn below_virtual(path: &Path) -> bool {
    ["/dev", "/proc", "/sys"].iter().any(|directory| path.starts_with(directory))
}

/// Where a container finds control groups.
pub(crate) const GROUPS: &str = "/sys/fs/cgroup";

/// What a container sees of version 1's groups.
#[derive(Debug)]
pub(crate) struct GroupsView<'a> {
    /// Names below [`GROUPS`], and the groups on the host.
    pub groups: &'a [(String, PathBuf)],
    pub readonly: bool,
}

/// The view that is attached when the engine is done; `None` where there is none, or where mounts of the plan stand there.
pub(crate) fn groups_view<'a>(
    plan: &ContainerPlan,
    version: Version,
    groups: &'a [(String, PathBuf)],
) -> Option<GroupsView<'a>> {
    let covered = plan.mounts.iter().any(|mount| {
        let place = Path::new(&mount.destination);
        place.starts_with(GROUPS) || Path::new(GROUPS).starts_with(place)
    });
    let shown = version == Version::V1 && !groups.is_empty() && !covered;
    shown.then_some(GroupsView { groups, readonly: !plan.security.privileged })
}

/// Checks the destinations of the plan's mounts and files.
pub(super) fn check(plan: &ContainerPlan, inputs: &SpecInputs<'_>) -> Result<(), SpecError> {
    let usable = |path: &str| {
        path.starts_with('/') && !path.trim_matches('/').is_empty() && path.split('/').all(|name| name != "..")
    };
    let destinations =
        plan.mounts.iter().map(|mount| &mount.destination).chain(plan.files.iter().map(|(path, _)| path));
    if let Some(wrong) = destinations.into_iter().find(|path| !usable(path)) {
        return Err(SpecError::MountDestination(wrong.clone()));
    }
    if let Some(wrong) = plan.mounts.iter().find(|mount| !may_be_covered(Path::new(&mount.destination))) {
        return Err(SpecError::MountOverProc(wrong.destination.clone()));
    }
    check_dev(plan)?;
    check_tmpfs(plan, inputs)
}

/// Only a directory of the host can be mounted over /dev, and nothing below it.
fn check_dev(plan: &ContainerPlan) -> Result<(), SpecError> {
    let Some(index) = host_dev(plan) else { return Ok(()) };
    if matches!(plan.mounts[index].kind, MountKind::Tmpfs { .. }) {
        return Err(SpecError::MountOverDev);
    }
    let mut others = plan.mounts.iter().enumerate().filter(|(other, _)| *other != index).map(|(_, mount)| mount);
    match others.find(|mount| Path::new(&mount.destination).starts_with("/dev")) {
        Some(below) => Err(SpecError::MountBelowHostDev(below.destination.clone())),
        None => Ok(()),
    }
}

/// A read-only tmpfs is read-only from its first moment, so no place for another mount can be made in it.
fn check_tmpfs(plan: &ContainerPlan, inputs: &SpecInputs<'_>) -> Result<(), SpecError> {
    let destinations = || {
        let mounts = plan.mounts.iter().map(|mount| &mount.destination);
        mounts.chain(plan.files.iter().map(|(path, _)| path)).chain(inputs.writable_paths.iter().map(|(path, _)| path))
    };
    let readonly = |mount: &&Mount| mount.readonly && matches!(mount.kind, MountKind::Tmpfs { .. });
    for outer in plan.mounts.iter().filter(readonly).map(|mount| &mount.destination) {
        if let Some(inner) = destinations().find(|inner| *inner != outer && Path::new(inner).starts_with(outer)) {
            return Err(SpecError::MountInReadonlyTmpfs(inner.clone(), outer.clone()));
        }
    }
    Ok(())
}

pub(super) fn mounts(plan: &ContainerPlan, inputs: &SpecInputs<'_>) -> Result<Vec<OciMount>, SpecError> {
    let mut list = standard(plan)?;
    list.extend(cgroups(plan, inputs)?);
    for (destination, source) in inputs.writable_paths {
        list.push(bind(source, destination, false, Propagation::Private)?);
    }
    let planned = |destination: &str| plan.mounts.iter().any(|mount| mount.destination == destination);
    for (index, (destination, _)) in plan.files.iter().enumerate() {
        if !planned(destination) {
            list.push(bind(&file_source(inputs.files, index, destination), destination, false, Propagation::Private)?);
        }
    }
    for mount in &plan.mounts {
        list.push(requested(mount)?);
    }
    Ok(list)
}

/// Where the content of one of the plan's small files is kept.
pub(crate) fn file_source(directory: &Path, index: usize, destination: &str) -> PathBuf {
    let name = destination.rsplit('/').next().unwrap_or_default();
    directory.join(format!("{index}-{name}"))
}

/// What every container has.
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
    // In the host's IPC namespace this shows the host's queues.
    list.push(mount("mqueue", "mqueue", "/dev/mqueue", &["nosuid", "noexec", "nodev"])?);
    if plan.namespaces.private_ipc && plan.shm_size == 0 {
        // A size of nothing means no limit to the kernel.
    } else if plan.namespaces.private_ipc {
        list.push(mount("tmpfs", "shm", "/dev/shm", &["nosuid", "noexec", "nodev", "mode=1777", &shm_size])?);
    } else {
        list.push(bind(Path::new("/dev/shm"), "/dev/shm", false, Propagation::Private)?);
    }
    let host_dev = host_dev(plan).is_some();
    list.retain(|standard| {
        let replaced = plan.mounts.iter().any(|own| Path::new(&own.destination) == standard.destination());
        let hidden = host_dev && standard.destination().starts_with("/dev");
        !replaced && !hidden
    });
    Ok(list)
}

/// The container's own control groups, to be read: programs size themselves by them.
fn cgroups(plan: &ContainerPlan, inputs: &SpecInputs<'_>) -> Result<Vec<OciMount>, SpecError> {
    const FLAGS: [&str; 3] = ["nosuid", "noexec", "nodev"];
    let access = if plan.security.privileged { "rw" } else { "ro" };
    match (inputs.cgroup_version, inputs.visible_cgroups) {
        // Without a namespace for them, mounting them would show those of all tasks.
        (Version::V2, [(_, group)]) => Ok(vec![bind(group, GROUPS, true, Propagation::Private)?]),
        (Version::V2, _) => Ok(vec![mount("cgroup", "cgroup", GROUPS, &[&FLAGS[..], &[access]].concat())?]),
        (Version::V1, []) => Ok(Vec::new()),
        (Version::V1, groups) => {
            let directory = mount("tmpfs", "tmpfs", GROUPS, &[&FLAGS[..], &["mode=755"]].concat())?;
            let mut list = vec![directory];
            for (name, group) in groups {
                list.push(bind(group, &format!("{GROUPS}/{name}"), access == "ro", Propagation::Private)?);
            }
            Ok(list)
        }
    }
}

fn requested(wanted: &Mount) -> Result<OciMount, SpecError> {
    match &wanted.kind {
        MountKind::Bind { source } => bind(source, &wanted.destination, wanted.readonly, wanted.propagation),
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

/// Propagation of the whole root, which decides for all mounts (libcontainer ignores what a single mount says).
/// Where mounts differ, those that this does not suit are prepared (`rootfs::bind_sources`).
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
