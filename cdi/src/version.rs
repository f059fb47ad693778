//! The versions of the specification, and the fields that came with them.

use crate::document::{ContainerEdits, Spec, SpecError};

/// The known versions, the oldest one first.
const VERSIONS: [&str; 10] = ["0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"];

/// A document is at least of this version, which has no requirements.
const EARLIEST: &str = "0.3.0";

/// Refuses an unknown version, and one that lacks a field of the document.
pub(crate) fn check(spec: &Spec) -> Result<(), SpecError> {
    let version = spec.cdi_version.strip_prefix('v').unwrap_or(&spec.cdi_version);
    let place = |version: &str| VERSIONS.iter().position(|known| *known == version);
    let Some(declared) = place(version) else {
        return Err(SpecError(format!(
            "cdiVersion {:?} is not known; the latest known one is 1.1.0",
            spec.cdi_version
        )));
    };
    let needed = minimum(spec);
    if place(needed).is_some_and(|needed| needed > declared) {
        return Err(SpecError(format!(
            "cdiVersion {:?} is too low: the document has fields that came with {needed}",
            spec.cdi_version
        )));
    }
    Ok(())
}

/// The lowest version with all fields of a document.
fn minimum(spec: &Spec) -> &'static str {
    let all = || spec.devices.iter().map(|device| &device.container_edits).chain([&spec.container_edits]);
    let any = |has: &dyn Fn(&ContainerEdits) -> bool| all().any(has);
    let monitored = |edits: &ContainerEdits| {
        edits.intel_rdt.as_ref().is_some_and(|rdt| rdt.schemata.is_some() || rdt.enable_monitoring)
    };
    if any(&|edits| !edits.net_devices.is_empty() || monitored(edits)) {
        "1.1.0"
    } else if any(&|edits| edits.intel_rdt.is_some() || !edits.additional_gids.is_empty()) {
        "0.7.0"
    } else if !spec.annotations.is_empty()
        || spec.devices.iter().any(|device| !device.annotations.is_empty())
        || spec.kind.split_once('/').is_some_and(|(_, class)| class.contains('.'))
    {
        "0.6.0"
    } else if any(&|edits| edits.device_nodes.iter().any(|node| !node.host_path.is_empty()))
        || spec.devices.iter().any(|device| device.name.starts_with(|first: char| first.is_ascii_digit()))
    {
        "0.5.0"
    } else if any(&|edits| edits.mounts.iter().any(|mount| !mount.mount_type.is_empty())) {
        "0.4.0"
    } else {
        EARLIEST
    }
}
