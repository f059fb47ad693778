//! The complete OCI runtime spec of a container. Any OCI runtime could run it.

use std::path::{Component, Path, PathBuf};

use oci_spec::runtime::{
    Linux, LinuxIdMappingBuilder, LinuxNamespace, LinuxNamespaceBuilder, LinuxNamespaceType, RootBuilder, Spec,
    SpecBuilder,
};

use super::{
    cgroup_view::CGROUP_DIR, destinations, device::HostDevice, error::SpecError, inputs::SpecInputs, mounts, process,
    resources, seccomp,
};
use crate::plan::{ContainerPlan, IDS_PER_CONTAINER, Network, Seccomp, SelinuxLabels};

/// Paths that show or leak the host. Docker hides the same.
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

/// The complete OCI runtime spec of a container.
pub(crate) fn complete_spec(plan: &ContainerPlan, inputs: &SpecInputs<'_>) -> Result<Spec, SpecError> {
    if plan.hostname.is_some() && !plan.namespaces.private_uts {
        return Err(SpecError::HostnameOfHost);
    }
    destinations::check(plan, inputs)?;
    if let Some(wrong) = inputs.devices.iter().find(|device| !below_dev(&device.container_path)) {
        return Err(SpecError::DevicePlace(wrong.container_path.clone()));
    }
    let root = RootBuilder::default().path(inputs.rootfs).readonly(plan.root.readonly).build()?;
    let mut spec = SpecBuilder::default()
        .version("1.2.0")
        .root(root)
        .mounts(mounts::mounts(plan, inputs)?)
        .process(process::process(plan, inputs)?)
        .linux(linux(plan, inputs)?)
        .build()?;
    spec.set_hostname(plan.hostname.clone());
    if !plan.annotations.is_empty() {
        spec.set_annotations(Some(plan.annotations.clone().into_iter().collect()));
    }
    Ok(spec)
}

/// Whether a device may be at `path`.
fn below_dev(path: &Path) -> bool {
    path != Path::new("/dev") && path.starts_with("/dev") && path.components().all(|part| part != Component::ParentDir)
}

/// The device nodes to make. None is made below a mount of the plan: its source has its own files and may belong to
/// others.
pub(crate) fn device_nodes<'a>(
    plan: &ContainerPlan,
    devices: &'a [HostDevice],
) -> impl Iterator<Item = &'a HostDevice> {
    let shown =
        |device: &&HostDevice| !plan.mounts.iter().any(|mount| device.container_path.starts_with(&mount.destination));
    devices.iter().filter(shown)
}

/// The section `linux`.
fn linux(plan: &ContainerPlan, inputs: &SpecInputs<'_>) -> Result<Linux, SpecError> {
    let mut linux = Linux::default();
    let paths = |list: &[&str]| Some(list.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>());
    let (masked, readonly) = match (plan.security.privileged, inputs.visible_cgroups) {
        (true, _) => (Some(Vec::new()), Some(Vec::new())),
        (false, []) => (paths(&MASKED_PATHS), paths(&READONLY_PATHS)),
        // On version 1 this is the directory above the single cgroups, which are read-only themselves.
        (false, _) => (paths(&MASKED_PATHS), paths(&[&READONLY_PATHS[..], &[CGROUP_DIR]].concat())),
    };
    linux
        .set_namespaces(Some(namespaces(plan)?))
        .set_cgroups_path(Some(PathBuf::from(&plan.cgroup.path)))
        .set_resources(Some(resources::resources(plan, inputs)?))
        .set_devices(Some(device_nodes(plan, inputs.devices).map(HostDevice::node).collect::<Result<_, _>>()?))
        .set_masked_paths(masked)
        .set_readonly_paths(readonly)
        .set_rootfs_propagation(Some(mounts::root_propagation(plan).to_owned()))
        .set_mount_label(plan.selinux.as_ref().map(SelinuxLabels::of_files));
    if let Some(range) = plan.id_range() {
        let mapping =
            LinuxIdMappingBuilder::default().container_id(0u32).host_id(range.first).size(IDS_PER_CONTAINER).build()?;
        linux.set_uid_mappings(Some(vec![mapping])).set_gid_mappings(Some(vec![mapping]));
    }
    let names: Vec<String> = process::capabilities(plan, inputs.held)?.names().map(str::to_owned).collect();
    linux.set_seccomp(match &plan.security.seccomp {
        Seccomp::Default if plan.security.privileged => None,
        Seccomp::Default => Some(seccomp::seccomp(&names)?),
        Seccomp::Unconfined => None,
        Seccomp::Profile(profile) => Some(seccomp::of_profile(profile, &names, inputs.kernel)?),
    });
    if !plan.sysctl.is_empty() {
        linux.set_sysctl(Some(plan.sysctl.clone().into_iter().collect()));
    }
    Ok(linux)
}

/// The namespaces that the container creates or joins.
fn namespaces(plan: &ContainerPlan) -> Result<Vec<LinuxNamespace>, SpecError> {
    let wanted = &plan.namespaces;
    let private = [
        (LinuxNamespaceType::User, plan.id_range().is_some()),
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
