//! What the specification demands of a document beyond its form.

use std::collections::BTreeSet;

use crate::{
    document::{ContainerEdits, DeviceNode, Hook, Spec, SpecError},
    name::check_device,
    version,
};

/// Checks a document.
pub(crate) fn check(spec: &Spec) -> Result<(), SpecError> {
    version::check(spec)?;
    spec.parsed_kind()?;
    edits(&spec.container_edits).map_err(|problem| SpecError(format!("containerEdits: {problem}")))?;
    if spec.devices.is_empty() {
        return Err(SpecError("devices: there is none".to_owned()));
    }
    let mut names = BTreeSet::new();
    for device in &spec.devices {
        let in_device = |problem: &str| SpecError(format!("device {:?}: {problem}", device.name));
        check_device(&device.name).map_err(|error| SpecError(error.to_string()))?;
        if !names.insert(&device.name) {
            return Err(in_device("the document has it twice"));
        }
        if device.container_edits.is_empty() {
            return Err(in_device("containerEdits is empty"));
        }
        edits(&device.container_edits).map_err(|problem| in_device(&problem))?;
    }
    Ok(())
}

fn edits(edits: &ContainerEdits) -> Result<(), String> {
    variables("env", &edits.env)?;
    edits.device_nodes.iter().try_for_each(node)?;
    edits.hooks.iter().try_for_each(hook)?;
    for mount in &edits.mounts {
        for (field, path) in [("hostPath", &mount.host_path), ("containerPath", &mount.container_path)] {
            if path.is_empty() {
                return Err(format!("mounts: {field} is empty"));
            }
        }
    }
    if let Some(rdt) = &edits.intel_rdt {
        let id = rdt.clos_id.as_str();
        let wrong = id.len() >= 4096 || id == "." || id == ".." || id.contains(['/', '\n']);
        if wrong && id != "/" {
            return Err(format!("intelRdt: closID {id:?} is not the name of a class"));
        }
    }
    let (mut on_node, mut inside) = (BTreeSet::new(), BTreeSet::new());
    for device in &edits.net_devices {
        if device.host_interface_name.is_empty() || device.name.is_empty() {
            return Err("netDevices: hostInterfaceName and name must be given".to_owned());
        }
        if !on_node.insert(&device.host_interface_name) || !inside.insert(&device.name) {
            return Err(format!("netDevices: {:?} is there twice", device.host_interface_name));
        }
    }
    Ok(())
}

fn variables(field: &str, env: &[String]) -> Result<(), String> {
    match env.iter().find(|entry| entry.find('=').is_none_or(|place| place == 0)) {
        Some(wrong) => Err(format!("{field}: {wrong:?} is not of the form NAME=value")),
        None => Ok(()),
    }
}

fn node(node: &DeviceNode) -> Result<(), String> {
    if node.path.is_empty() {
        return Err("deviceNodes: path is empty".to_owned());
    }
    let letters = node.permissions.bytes().all(|letter| b"rwm".contains(&letter));
    if !letters && node.permissions != "none" {
        return Err(format!("deviceNodes: {:?}: permissions {:?} are not of r, w and m", node.path, node.permissions));
    }
    Ok(())
}

fn hook(hook: &Hook) -> Result<(), String> {
    if !hook.path.starts_with('/') {
        return Err(format!("hooks: path {:?} is not absolute", hook.path));
    }
    if hook.timeout.is_some_and(|seconds| seconds <= 0) {
        return Err(format!("hooks: {:?}: timeout must be above 0", hook.path));
    }
    variables("hooks: env", &hook.env)
}
