//! From a plan to the OCI runtime spec: pure, once the host's and the image's facts are known.
//!
//! [`oci_spec`] is the complete spec that goes into the bundle, so that any OCI runtime could run it. [`for_engine`] takes
//! out of it what our own executor does instead of libcontainer, because there the order matters (`engine`).

mod capability;
mod device;
mod mounts;
mod resources;
mod seccomp;

use std::path::{Component, Path, PathBuf};

use libcontainer_spec::{
    Linux, LinuxNamespace, LinuxNamespaceBuilder, LinuxNamespaceType, PosixRlimit, PosixRlimitBuilder, PosixRlimitType,
    Process, RootBuilder, Spec, SpecBuilder, UserBuilder,
};

pub(crate) use capability::{CapabilityError, CapabilityMask};
pub(crate) use device::{HostDevice, host_devices};
pub(crate) use mounts::{
    GROUPS, GroupsView, Source, Sources, below_virtual, file_source, groups_view, host_dev, may_be_covered,
};

use crate::{
    cgroup::Mode,
    plan::{ContainerPlan, Network, Seccomp},
    user::ResolvedUser,
};

/// The spec's types, as the engine's library knows them.
pub(crate) mod libcontainer_spec {
    pub use crate::engine::oci_spec::runtime::*;
}

/// What the spec depends on beside the plan.
#[derive(Debug)]
pub(crate) struct Facts<'a> {
    pub user: &'a ResolvedUser,
    pub cgroup_mode: Mode,
    /// The kernel counts swap per group.
    pub swap_accounting: bool,
    /// Capabilities that we hold ourselves.
    pub held: CapabilityMask,
    /// Version of the kernel, for profiles that ask for it.
    pub kernel: (u32, u32),
    /// The plan's devices as they are on this host; all of the host's for a privileged container.
    pub devices: &'a [HostDevice],
    /// The root file system.
    pub rootfs: &'a Path,
    /// Where the plan's small files are.
    pub files: &'a Path,
    /// The groups that the container may look at where it has no view of its own, by their name below /sys/fs/cgroup; on v2 a
    /// single one without a name.
    pub visible_groups: &'a [(String, PathBuf)],
    /// Directories of the root file system that stay writable: path in the container, path on the host.
    pub writable_paths: &'a [(String, PathBuf)],
}

/// A plan that cannot become a spec.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SpecError {
    #[error("the command is empty")]
    NoCommand,
    #[error(transparent)]
    Capability(#[from] CapabilityError),
    #[error("ulimit {0:?}: there is no such limit; known are {known}", known = RLIMITS.map(|(name, _)| name).join(", "))]
    UnknownRlimit(String),
    #[error("ulimit {0}: the soft limit is above the hard limit")]
    SoftAboveHard(String),
    #[error("hostname: the container shares the host's UTS namespace, so its name cannot be set")]
    HostnameOfHost,
    #[error("mount destination {0:?}: an absolute path below / is needed")]
    MountDestination(String),
    #[error("mount destination {0:?}: /proc cannot be covered, which confines the container")]
    MountOverProc(String),
    #[error(
        "mount destination {0:?}: the host's /dev is mounted over the container's, so nothing of the container's can be mounted below it"
    )]
    MountBelowHostDev(String),
    #[error(
        "mount destination {0:?}: {1} is an empty read-only tmpfs, in which there is no place for it; make that one writable"
    )]
    MountInReadonlyTmpfs(String, String),
    #[error("mount destination \"/dev\": only a directory of the host can be mounted there")]
    MountOverDev,
    #[error("device {0:?}: devices appear below /dev; choose another path in the container")]
    DevicePlace(PathBuf),
    #[error("device permissions {0:?}: any of r, w and m are allowed")]
    DevicePermissions(String),
    #[error("OCI spec: {0}")]
    Oci(String),
}

impl From<crate::engine::oci_spec::OciSpecError> for SpecError {
    fn from(error: crate::engine::oci_spec::OciSpecError) -> Self {
        Self::Oci(error.to_string())
    }
}

/// Paths that show or leak the host, hidden as docker hides them.
const MASKED_PATHS: [&str; 12] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
];

/// Paths through which the host could be changed.
const READONLY_PATHS: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// The limits of setrlimit(2) by their names in a plan.
const RLIMITS: [(&str, PosixRlimitType); 16] = [
    ("as", PosixRlimitType::RlimitAs),
    ("core", PosixRlimitType::RlimitCore),
    ("cpu", PosixRlimitType::RlimitCpu),
    ("data", PosixRlimitType::RlimitData),
    ("fsize", PosixRlimitType::RlimitFsize),
    ("locks", PosixRlimitType::RlimitLocks),
    ("memlock", PosixRlimitType::RlimitMemlock),
    ("msgqueue", PosixRlimitType::RlimitMsgqueue),
    ("nice", PosixRlimitType::RlimitNice),
    ("nofile", PosixRlimitType::RlimitNofile),
    ("nproc", PosixRlimitType::RlimitNproc),
    ("rss", PosixRlimitType::RlimitRss),
    ("rtprio", PosixRlimitType::RlimitRtprio),
    ("rttime", PosixRlimitType::RlimitRttime),
    ("sigpending", PosixRlimitType::RlimitSigpending),
    ("stack", PosixRlimitType::RlimitStack),
];

/// The plan's environment, with HOME when it is missing.
pub(crate) fn environment(plan: &ContainerPlan, user: &ResolvedUser) -> Vec<(String, String)> {
    let mut env = plan.env.clone();
    if !env.iter().any(|(name, value)| name == "HOME" && !value.is_empty()) {
        env.retain(|(name, _)| name != "HOME");
        env.push(("HOME".to_owned(), user.home.clone()));
    }
    env
}

/// The capabilities that the container's bounding set holds.
pub(crate) fn capabilities(plan: &ContainerPlan, held: CapabilityMask) -> Result<CapabilityMask, CapabilityError> {
    if plan.security.privileged {
        return Ok(held);
    }
    Ok(CapabilityMask::from_names(&plan.security.capabilities)?.and(held))
}

/// The complete OCI runtime spec of a container.
pub(crate) fn oci_spec(plan: &ContainerPlan, facts: &Facts<'_>) -> Result<Spec, SpecError> {
    if plan.hostname.is_some() && !plan.namespaces.private_uts {
        return Err(SpecError::HostnameOfHost);
    }
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
    mounts::check_dev(plan)?;
    mounts::check_tmpfs(plan, facts)?;
    if let Some(wrong) = facts.devices.iter().find(|device| !below_dev(&device.container_path)) {
        return Err(SpecError::DevicePlace(wrong.container_path.clone()));
    }
    let root = RootBuilder::default().path(facts.rootfs).readonly(plan.root.readonly).build()?;
    let mut spec = SpecBuilder::default()
        .version("1.2.0")
        .root(root)
        .mounts(mounts::mounts(plan, facts)?)
        .process(process(plan, facts)?)
        .linux(linux(plan, facts)?)
        .build()?;
    spec.set_hostname(plan.hostname.clone());
    if !plan.annotations.is_empty() {
        spec.set_annotations(Some(plan.annotations.clone().into_iter().collect()));
    }
    Ok(spec)
}

fn process(plan: &ContainerPlan, facts: &Facts<'_>) -> Result<Process, SpecError> {
    if plan.args.is_empty() {
        return Err(SpecError::NoCommand);
    }
    let user = UserBuilder::default()
        .uid(facts.user.uid)
        .gid(facts.user.gid)
        .additional_gids(facts.user.groups.clone())
        .umask(0o022u32)
        .build()?;
    let env = environment(plan, facts.user).into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    let bounding = capabilities(plan, facts.held)?;
    let mut process = Process::default();
    process
        .set_terminal(Some(plan.terminal))
        .set_user(user)
        .set_args(Some(plan.args.clone()))
        .set_env(Some(env))
        .set_cwd(PathBuf::from(&plan.cwd))
        .set_capabilities(Some(bounding.for_user(facts.user.uid)?))
        .set_rlimits(Some(rlimits(plan)?))
        .set_no_new_privileges(Some(plan.security.no_new_privileges))
        .set_apparmor_profile(plan.security.apparmor.clone())
        .set_oom_score_adj(Some(plan.oom_score_adj));
    Ok(process)
}

fn rlimits(plan: &ContainerPlan) -> Result<Vec<PosixRlimit>, SpecError> {
    plan.rlimits
        .iter()
        .map(|(name, limit)| {
            let (_, typ) = RLIMITS
                .into_iter()
                .find(|(known, _)| known == name)
                .ok_or_else(|| SpecError::UnknownRlimit(name.clone()))?;
            if limit.soft > limit.hard {
                return Err(SpecError::SoftAboveHard(name.clone()));
            }
            Ok(PosixRlimitBuilder::default().typ(typ).soft(limit.soft).hard(limit.hard).build()?)
        })
        .collect()
}

fn below_dev(path: &Path) -> bool {
    path != Path::new("/dev") && path.starts_with("/dev") && path.components().all(|part| part != Component::ParentDir)
}

/// The device nodes that are made: none in what a mount of the plan shows, which has its own and may be others' to change.
fn nodes<'a>(plan: &ContainerPlan, facts: &Facts<'a>) -> impl Iterator<Item = &'a HostDevice> {
    let shown =
        |device: &&HostDevice| !plan.mounts.iter().any(|mount| device.container_path.starts_with(&mount.destination));
    facts.devices.iter().filter(shown)
}

fn linux(plan: &ContainerPlan, facts: &Facts<'_>) -> Result<Linux, SpecError> {
    let mut linux = Linux::default();
    let paths = |list: &[&str]| Some(list.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>());
    let (masked, readonly) = match (plan.security.privileged, facts.visible_groups) {
        (true, _) => (Some(Vec::new()), Some(Vec::new())),
        (false, []) => (paths(&MASKED_PATHS), paths(&READONLY_PATHS)),
        // On v1 the directory over the single groups, which are read-only themselves.
        (false, _) => (paths(&MASKED_PATHS), paths(&[&READONLY_PATHS[..], &[GROUPS]].concat())),
    };
    linux
        .set_namespaces(Some(namespaces(plan)?))
        .set_cgroups_path(Some(PathBuf::from(&plan.cgroup.path)))
        .set_resources(Some(resources::resources(plan, facts)?))
        .set_devices(Some(nodes(plan, facts).map(HostDevice::node).collect::<Result<_, _>>()?))
        .set_masked_paths(masked)
        .set_readonly_paths(readonly)
        .set_rootfs_propagation(Some(mounts::root_propagation(plan).to_owned()));
    let names: Vec<String> = capabilities(plan, facts.held)?.names().map(str::to_owned).collect();
    linux.set_seccomp(match &plan.security.seccomp {
        Seccomp::Default if plan.security.privileged => None,
        Seccomp::Default => Some(seccomp::seccomp(&names)?),
        Seccomp::Unconfined => None,
        Seccomp::Profile(profile) => Some(seccomp::of_profile(profile, &names, facts.kernel)?),
    });
    if !plan.sysctl.is_empty() {
        linux.set_sysctl(Some(plan.sysctl.clone().into_iter().collect()));
    }
    Ok(linux)
}

fn namespaces(plan: &ContainerPlan) -> Result<Vec<LinuxNamespace>, SpecError> {
    let wanted = &plan.namespaces;
    let private = [
        (LinuxNamespaceType::Mount, true),
        (LinuxNamespaceType::Pid, wanted.private_pid),
        (LinuxNamespaceType::Ipc, wanted.private_ipc),
        (LinuxNamespaceType::Uts, wanted.private_uts),
        (LinuxNamespaceType::Cgroup, wanted.private_cgroup),
        (LinuxNamespaceType::Network, wanted.network == Network::Private),
    ];
    let mut list = Vec::new();
    for (typ, _) in private.into_iter().filter(|(_, private)| *private) {
        list.push(LinuxNamespaceBuilder::default().typ(typ).build()?);
    }
    if let Network::Path(path) = &wanted.network {
        list.push(LinuxNamespaceBuilder::default().typ(LinuxNamespaceType::Network).path(path).build()?);
    }
    Ok(list)
}

/// The spec that libcontainer is given: without what our executor does last, in the one order that is right, and with the
/// mount sources that stand in for the plan's. On version 1 the limits are ours to set, too ([`Stay`](crate::cgroup::Stay)), and the view
/// of the groups is ours to make where there is one.
pub(crate) fn for_engine(
    mut spec: Spec,
    home: &str,
    sources: &Sources,
    mode: Mode,
    view: Option<&GroupsView<'_>>,
) -> Spec {
    if let Some(process) = spec.process_mut() {
        let no_new_privileges = process.no_new_privileges().filter(|wanted| *wanted);
        process
            .set_env(Some(vec![format!("HOME={home}")]))
            .set_capabilities(None)
            .set_rlimits(None)
            .set_oom_score_adj(None)
            .set_apparmor_profile(None)
            .set_no_new_privileges(no_new_privileges);
    }
    if let Some(linux) = spec.linux_mut() {
        linux.set_seccomp(None);
        if mode == Mode::V1 {
            linux.set_resources(None);
        }
        if let (Some(_), Some(paths)) = (view, linux.readonly_paths_mut()) {
            paths.retain(|path| path != GROUPS);
        }
    }
    if let Some(list) = spec.mounts_mut() {
        sources.replace(list);
        list.retain(|mount| view.is_none() || !mount.destination().starts_with(GROUPS));
    }
    spec
}

#[cfg(test)]
mod tests;
