//! The places in a container on which a plan may mount.

use std::path::Path;

use super::{error::SpecError, inputs::SpecInputs};
use crate::plan::{ContainerPlan, Mount, MountKind};

/// Files of procfs that a mount may cover. They show a program its limits; the confinement of a container does not
/// depend on them.
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

/// Whether a mount of the plan may be on `destination`. It must not cover procfs, on which the confinement depends.
pub(crate) fn may_be_covered(destination: &Path) -> bool {
    !destination.starts_with("/proc") || COVERABLE.iter().any(|file| destination == Path::new(file))
}

/// The index of a mount over the whole of the container's /dev. Its source is a directory of the host, usually its
/// /dev: Nomad gives that to CSI plugins.
///
/// libcontainer would make its nodes and links in that directory, on the host. So it gets a /dev of the container's
/// own, and this mount is attached over it last.
pub(crate) fn host_dev_mount(plan: &ContainerPlan) -> Option<usize> {
    plan.mounts.iter().position(|mount| Path::new(&mount.destination) == Path::new("/dev"))
}

/// Whether a path is on one of the standard file systems, which are mounted before the plan's mounts.
pub(crate) fn is_on_standard_mount(path: &Path) -> bool {
    ["/dev", "/proc", "/sys"].iter().any(|directory| path.starts_with(directory))
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
    let Some(index) = host_dev_mount(plan) else { return Ok(()) };
    if !matches!(plan.mounts[index].kind, MountKind::Bind { .. }) {
        return Err(SpecError::MountOverDev);
    }
    let mut others = plan.mounts.iter().enumerate().filter(|(other, _)| *other != index).map(|(_, mount)| mount);
    match others.find(|mount| Path::new(&mount.destination).starts_with("/dev")) {
        Some(below) => Err(SpecError::MountBelowHostDev(below.destination.clone())),
        None => Ok(()),
    }
}

/// A read-only tmpfs is read-only from its first moment, so the place of another mount cannot be made in it.
fn check_tmpfs(plan: &ContainerPlan, inputs: &SpecInputs<'_>) -> Result<(), SpecError> {
    let destinations = || {
        let mounts = plan.mounts.iter().map(|mount| &mount.destination);
        mounts
            .chain(plan.files.iter().map(|(path, _)| path))
            .chain(inputs.volumes.iter().map(|volume| &volume.destination))
    };
    let readonly = |mount: &&Mount| mount.readonly && matches!(mount.kind, MountKind::Tmpfs { .. });
    for outer in plan.mounts.iter().filter(readonly).map(|mount| &mount.destination) {
        if let Some(inner) = destinations().find(|inner| *inner != outer && Path::new(inner).starts_with(outer)) {
            return Err(SpecError::MountInReadonlyTmpfs(inner.clone(), outer.clone()));
        }
    }
    Ok(())
}
