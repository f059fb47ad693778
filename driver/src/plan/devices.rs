//! Devices of the host in the container.

use std::path::Path;

use runtime::plan::Device;

use super::{
    cdi,
    context::TaskContext,
    path::{normalize_container_path, normalize_host_path},
};
use crate::config::{ErrorCollector, Needs, Permission};

/// Devices that the task names, and those that device plugins assigned. For one path, the last device wins, as in
/// docker.
pub fn decide(context: &TaskContext, errors: &ErrorCollector) -> Vec<Device> {
    let TaskContext { spec, task, .. } = *context;
    match cdi::wanted(spec, task, &context.image.config) {
        Ok(devices) => {
            for device in devices.iter().filter(|device| !device.reserved) {
                check_allowed(context, &device.name.to_string(), errors);
            }
        }
        Err(wrong) => {
            let remedy = "name devices by index, by UUID, or all of them with `all`";
            errors.add(wrong.variable, wrong.error.to_string(), remedy);
        }
    }
    let from_task = spec.devices.iter().map(|device| {
        let host_path = normalize_host_path(Path::new(&device.host_path));
        check_allowed(context, &host_path.to_string_lossy(), errors);
        let container_path = normalize_container_path(&device.container_path);
        Device { host_path, container_path, permissions: device.permissions.clone() }
    });
    let from_plugins = task.devices.iter().map(|device| Device {
        host_path: device.host_path.clone(),
        container_path: normalize_container_path(&device.task_path),
        permissions: device.permissions.clone(),
    });
    let mut devices: Vec<Device> = Vec::new();
    for device in from_task.chain(from_plugins) {
        devices.retain(|earlier| earlier.container_path != device.container_path);
        devices.push(device);
    }
    devices
}

/// Refuses a device that the operator does not allow, by its path or CDI name. A path may be a directory, which stands
/// for all devices in it: then everything below it must be allowed.
fn check_allowed(context: &TaskContext, text: &str, errors: &ErrorCollector) {
    if context.policy.allows_device(text) {
        return;
    }
    errors.forbid(
        "devices",
        format!("this node does not allow {text:?}"),
        format!("remove it, or have the operator set `allow_devices = [{text:?}]` in the plugin block"),
        Permission { option: "allow_devices", needs: Needs::Entries(vec![text.to_owned()]) },
    );
}
