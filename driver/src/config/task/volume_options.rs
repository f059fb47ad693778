//! The options of the volume driver `local`: the file system that a volume consists of.

use runtime::VolumeOptions;

use crate::config::{
    block::ConfigBlock,
    error::{ErrorCollector, Needs, Permission},
    pattern::any_matches,
    plugin::Policy,
};

/// The part of the plugin block that allows volumes and host paths.
pub const VOLUMES_ALLOWED: Permission = Permission { option: "volumes.enabled", needs: Needs::True };

/// The options that docker's driver knows, except for `size`.
const KNOWN: [&str; 3] = ["type", "o", "device"];

/// Reads `options` of the block `driver_config`. `None` if the volume is a plain directory, or after an error.
pub fn read(driver: &ConfigBlock, policy: &Policy) -> Option<VolumeOptions> {
    let options = driver.string_map("options");
    if options.is_empty() {
        return None;
    }
    let refuse = |problem: String, remedy: &str| driver.error("options", problem, remedy);
    for name in options.keys().filter(|name| !KNOWN.contains(&name.as_str())) {
        match name.as_str() {
            "size" => refuse(
                "`size` is not possible: volumes have no quota".to_owned(),
                "remove it, or mount a file system of this size, as in type = \"tmpfs\", o = \"size=100m\"",
            ),
            _ => refuse(format!("{name:?} is no option of the driver \"local\""), "use `type`, `o` and `device`"),
        }
    }
    for missing in ["type", "device"].into_iter().filter(|name| !options.contains_key(*name)) {
        refuse(
            format!("`{missing}` is missing"),
            "write type, o and device, as in type = \"nfs\", o = \"addr=10.0.0.5,rw\", device = \":/export\"",
        );
    }
    let value = |name: &str| options.get(name).cloned().unwrap_or_default();
    let options = VolumeOptions {
        kind: value("type"),
        device: value("device"),
        mount_options: value("o"),
        forgotten: Vec::new(),
    };
    check(driver, policy, &options);
    Some(options)
}

/// Refuses a type that the operator does not allow. `option` asks for the volume.
pub fn check_type(option: &str, policy: &Policy, options: &VolumeOptions, errors: &ErrorCollector) {
    let permission = options.permission();
    if any_matches(&policy.volume_types, permission) {
        return;
    }
    errors.forbid(
        option,
        format!("volumes of the type {permission:?} are not allowed on this node"),
        format!(
            "use a `volume` block in the group, or have the operator add {permission:?} to `volumes {{ allow_types }}` \
             in the plugin block"
        ),
        Permission { option: "volumes.allow_types", needs: Needs::Entries(vec![permission.to_owned()]) },
    );
}

fn check(driver: &ConfigBlock, policy: &Policy, options: &VolumeOptions) {
    let refuse = |problem: String, remedy: &str| driver.error("options", problem, remedy);
    if !policy.volumes_enabled {
        driver.forbid(
            "options",
            "are not allowed on this node",
            "use a `volume` block in the group, or have the operator set `volumes { enabled = true }` in the plugin \
             block",
            VOLUMES_ALLOWED,
        );
    }
    check_type(&driver.path_of("options"), policy, options, driver.errors);
    if options.is_bind() && !options.device.starts_with('/') {
        refuse(format!("`device` {:?} is not an absolute path", options.device), "write the path of the directory");
    }
    let text = [&options.kind, &options.device, &options.mount_options];
    if text.iter().any(|value| value.contains('\0')) {
        refuse("has a zero byte".to_owned(), "remove it");
    }
    if options.mount_options.len() >= 4096 {
        refuse("`o` is longer than 4095 bytes".to_owned(), "shorten it; the kernel takes no more");
    }
}
