//! What devices of the Container Device Interface change in a container.
//!
//! The edits of the specs become parts of the plan here. A later edit replaces an earlier one of the same place, and an
//! edit replaces what image and task say, as in docker.

mod mount;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use ::cdi::{ContainerEdits, DeviceNode, NameError, NodeType, QualifiedName};
use image_store::ImageConfig;
use network::Interface;
use runtime::plan::{CacheClass, DescribedDevice, Hook, HookStage, Mount, MountRestriction, NodeKind};

use super::{
    nomad_task::NomadTask,
    nvidia,
    path::{normalize_container_path, normalize_host_path},
};
use crate::config::{ErrorCollector, NVIDIA_RUNTIME, Policy, TaskSpec};

/// The option in errors about the content of specs.
const OPTION: &str = "devices";

/// Begins the variables with which our device plugin names the devices of a reservation.
pub const RESERVED: &str = "OCI_RS_CDI_DEVICES_";

/// A variable that names devices which cannot be.
pub struct WrongName {
    /// The variable.
    pub variable: String,
    /// What is wrong.
    pub error: NameError,
}

/// A device that a task gets through the specs of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedDevice {
    /// Its name.
    pub name: QualifiedName,
    /// A device plugin has reserved it for the task. Otherwise it needs the operator's permission.
    pub reserved: bool,
}

/// The devices that a task gets through specs: those of its block, those that our device plugin has reserved, and
/// NVIDIA's by their variable.
pub fn wanted(spec: &TaskSpec, task: &NomadTask, image: &ImageConfig) -> Result<Vec<WantedDevice>, WrongName> {
    let of_job = |name| WantedDevice { name, reserved: false };
    let of_plugin = |name| WantedDevice { name, reserved: true };
    let mut devices: Vec<WantedDevice> = spec.cdi_devices.iter().cloned().map(of_job).collect();
    for (variable, names) in task.device_env.iter().filter(|(variable, _)| variable.starts_with(RESERVED)) {
        let names = names.split(',').map(str::parse).collect::<Result<Vec<QualifiedName>, NameError>>();
        let names = names.map_err(|error| WrongName { variable: variable.clone(), error })?;
        devices.extend(names.into_iter().map(of_plugin));
    }
    let own_runtime = spec.runtime.as_ref().is_some_and(|runtime| runtime.name == NVIDIA_RUNTIME);
    if own_runtime {
        // NVIDIA's own runtime of the node reads the variable.
        return Ok(devices);
    }
    if let Some(value) = task.device_env.get(nvidia::VARIABLE) {
        devices.extend(nvidias(value)?.into_iter().map(of_plugin));
    } else if spec.nvidia_runtime {
        let of_image = || image.env.iter().find(|(name, _)| name == nvidia::VARIABLE).map(|(_, value)| value);
        let value = task.env.get(nvidia::VARIABLE).or_else(of_image).map(String::as_str);
        devices.extend(nvidias(value.unwrap_or_default())?.into_iter().map(of_job));
    }
    Ok(devices)
}

fn nvidias(value: &str) -> Result<Vec<QualifiedName>, WrongName> {
    nvidia::devices(value).map_err(|error| WrongName { variable: nvidia::VARIABLE.to_owned(), error })
}

/// The devices of a task, in order to read their specs. None if the task may not have all of them: the plan reports it.
pub fn permitted_names(spec: &TaskSpec, task: &NomadTask, image: &ImageConfig, policy: &Policy) -> Vec<QualifiedName> {
    let devices = wanted(spec, task, image).unwrap_or_default();
    let permitted = devices.iter().all(|device| device.reserved || policy.allows_device(&device.name.to_string()));
    if permitted { devices.into_iter().map(|device| device.name).collect() } else { Vec::new() }
}

/// The parts of a plan that follow from edits.
#[derive(Debug, Default, PartialEq)]
pub struct CdiPlan {
    /// Variables.
    pub env: Vec<(String, String)>,
    /// Device nodes, by their paths in the container.
    pub devices: Vec<DescribedDevice>,
    /// Mounts, with what files on them cannot do.
    pub mounts: Vec<(Mount, BTreeSet<MountRestriction>)>,
    /// Additional groups of the command.
    pub groups: Vec<String>,
    /// Programs that run while the container is made, started and removed.
    pub hooks: Vec<Hook>,
    /// Network interfaces of the node that move to the container.
    pub interfaces: Vec<Interface>,
    /// The class of cache and memory bandwidth.
    pub cache_class: Option<CacheClass>,
}

/// Decides the parts of a plan. Edits that the driver cannot make are errors.
pub fn decide(edits: &ContainerEdits, errors: &ErrorCollector) -> CdiPlan {
    let refuse = |problem: String| errors.add(OPTION, problem, "change the spec of the device on this node");
    let mut plan = CdiPlan {
        env: edits.env.iter().filter_map(|entry| entry.split_once('=')).map(owned).collect(),
        groups: edits.additional_gids.iter().filter(|gid| **gid != 0).map(u32::to_string).collect(),
        hooks: edits.hooks.iter().map(hook).collect(),
        cache_class: edits.intel_rdt.as_ref().map(cache_class),
        ..CdiPlan::default()
    };
    for node in &edits.device_nodes {
        match device(node) {
            Ok(device) => {
                plan.devices.retain(|earlier| earlier.container_path != device.container_path);
                plan.devices.push(device);
            }
            Err(problem) => refuse(problem),
        }
    }
    for wanted in &edits.mounts {
        match mount::decide(wanted) {
            Ok((mount, restrictions)) => {
                plan.mounts.retain(|(earlier, _)| earlier.destination != mount.destination);
                plan.mounts.push((mount, restrictions));
            }
            Err(problem) => refuse(problem),
        }
    }
    for wanted in &edits.net_devices {
        match Interface::new(&wanted.host_interface_name, &wanted.name) {
            Ok(interface) => {
                plan.interfaces.retain(|earlier| earlier.host_name() != interface.host_name());
                plan.interfaces.push(interface);
            }
            Err(problem) => refuse(format!("`netDevices` of the device's spec: {problem}")),
        }
    }
    if let Some(name) = repeated(plan.interfaces.iter().map(Interface::name)) {
        refuse(format!("several network interfaces of the devices' specs have the name {name:?}"));
    }
    plan
}

/// Refuses what only the built-in runtime does.
pub fn refuse_with_installed_runtime(plan: &CdiPlan, errors: &ErrorCollector) {
    if let Some(hook) = plan.hooks.first() {
        let problem = format!("the hook {:?} of a device's spec cannot run with another OCI runtime", hook.path);
        errors.add(OPTION, problem, "remove `runtime`, or use a device without hooks");
    }
    if plan.cache_class.is_some() {
        let problem = "`intelRdt` of a device's spec is not possible with another OCI runtime";
        errors.add(OPTION, problem, "remove `runtime`, or use a device without `intelRdt`");
    }
}

/// The class of cache and memory bandwidth. The lines have the order that the OCI runtime specification demands.
fn cache_class(rdt: &::cdi::IntelRdt) -> CacheClass {
    let lines = [&rdt.l3_cache_schema, &rdt.mem_bw_schema].into_iter().chain(rdt.schemata.iter().flatten());
    CacheClass {
        name: Some(rdt.clos_id.clone()).filter(|name| !name.is_empty()),
        schemata: lines.filter(|line| !line.is_empty()).cloned().collect(),
        monitored: rdt.enable_monitoring,
    }
}

/// A name that comes again.
fn repeated<'a>(names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let mut seen = BTreeSet::new();
    names.into_iter().find(|name| !seen.insert(*name))
}

fn owned((name, value): (&str, &str)) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

fn hook(hook: &::cdi::Hook) -> Hook {
    Hook {
        stage: match hook.hook_name {
            ::cdi::HookStage::Prestart => HookStage::Prestart,
            ::cdi::HookStage::CreateRuntime => HookStage::CreateRuntime,
            ::cdi::HookStage::CreateContainer => HookStage::CreateContainer,
            ::cdi::HookStage::StartContainer => HookStage::StartContainer,
            ::cdi::HookStage::PostStart => HookStage::Poststart,
            ::cdi::HookStage::PostStop => HookStage::Poststop,
        },
        path: (&hook.path).into(),
        args: hook.args.clone(),
        env: hook.env.iter().filter_map(|entry| entry.split_once('=')).map(owned).collect(),
        timeout_s: hook.timeout.map(|seconds| u32::try_from(seconds).unwrap_or(u32::MAX)),
    }
}

fn device(node: &DeviceNode) -> Result<DescribedDevice, String> {
    let number = |number: i64| {
        u32::try_from(number)
            .map_err(|_| format!("{number} of {:?} in the device's spec is no device number", node.path))
    };
    let number = (node.major != 0).then(|| Ok::<_, String>((number(node.major)?, number(node.minor)?))).transpose()?;
    Ok(DescribedDevice {
        host_path: normalize_host_path(Path::new(mount::absolute(node.path_on_node())?)),
        container_path: normalize_container_path(mount::absolute(&node.path)?),
        kind: node.node_type.map(|kind| match kind {
            NodeType::Block => NodeKind::Block,
            NodeType::Character | NodeType::Unbuffered => NodeKind::Character,
            NodeType::Fifo => NodeKind::Fifo,
        }),
        number,
        mode: node.file_mode,
        uid: node.uid,
        gid: node.gid,
        permissions: match node.permissions.as_str() {
            "" => Some("rwm".to_owned()),
            "none" => None,
            letters => Some(letters.to_owned()),
        },
    })
}

/// The restrictions by destination.
pub fn restrictions(plan: &CdiPlan) -> BTreeMap<String, BTreeSet<MountRestriction>> {
    let some = plan.mounts.iter().filter(|(_, restrictions)| !restrictions.is_empty());
    some.map(|(mount, restrictions)| (mount.destination.clone(), restrictions.clone())).collect()
}

#[cfg(test)]
mod tests;
