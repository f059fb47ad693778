//! The task block's option for devices of the host.

use cdi::QualifiedName;

use crate::config::{
    block::ConfigBlock,
    option::{DefaultValue::Words, OptionSpec, OptionType},
};

/// The options of the task block that this module reads.
pub const OPTIONS: &[OptionSpec] = &[OptionSpec::honoured(
    "devices",
    OptionType::Blocks(DEVICE),
    Words("none"),
    "devices of the host, if the plugin's `allow_devices` allows them",
)];

const DEVICE: &[OptionSpec] = &[
    OptionSpec::honoured(
        "host_path",
        OptionType::String,
        Words("none, must be set unless `cdi` is"),
        "device node on the host",
    ),
    OptionSpec::honoured(
        "cdi",
        OptionType::String,
        Words("none"),
        "name of a CDI device of the node, as in `nvidia.com/gpu=0`, in place of all other options. See \
         [devices](devices.md)",
    ),
    OptionSpec::honoured("container_path", OptionType::String, Words("`host_path`"), "path in the container"),
    OptionSpec::honoured(
        "cgroup_permissions",
        OptionType::String,
        Words("`rwm`"),
        "`r` read, `w` write, `m` make device nodes",
    ),
];

/// A device that the task asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceRequest {
    /// Path on the host.
    pub host_path: String,
    /// Path in the container.
    pub container_path: String,
    /// Any of `r`, `w`, `m`.
    pub permissions: String,
}

/// Reads `devices`: device nodes, and names of the Container Device Interface.
pub fn read(block: &ConfigBlock) -> (Vec<DeviceRequest>, Vec<QualifiedName>) {
    let (mut nodes, mut names) = (Vec::new(), Vec::new());
    for block in block.blocks("devices") {
        match block.string("cdi") {
            Some(name) => names.extend(cdi_name(&block, &name)),
            None => nodes.extend(device(&block)),
        }
    }
    (nodes, names)
}

fn cdi_name(block: &ConfigBlock, name: &str) -> Option<QualifiedName> {
    for option in ["host_path", "container_path", "cgroup_permissions"] {
        if block.string(option).is_some() {
            block.error(option, "cannot be set together with `cdi`", "remove it: the device's spec says it");
        }
    }
    match name.parse() {
        Ok(name) => Some(name),
        Err(error) => {
            block.error("cdi", error.to_string(), "name a device as in \"nvidia.com/gpu=0\"");
            None
        }
    }
}

fn device(block: &ConfigBlock) -> Option<DeviceRequest> {
    let Some(host_path) = block.string("host_path") else {
        block.error(
            "host_path",
            "is missing",
            "name the device node of the host, as in \"/dev/fuse\", or a device with `cdi`",
        );
        return None;
    };
    let container_path = block.string("container_path").unwrap_or_else(|| host_path.clone());
    for (option, path) in [("host_path", &host_path), ("container_path", &container_path)] {
        if !path.starts_with('/') {
            block.error(option, format!("{path:?} is not an absolute path"), "begin it with /");
        }
    }
    let permissions = block.string("cgroup_permissions").unwrap_or_else(|| "rwm".to_owned());
    if !permissions.chars().all(|c| "rwm".contains(c)) {
        block.error(
            "cgroup_permissions",
            format!("{permissions:?} is not made of r, w and m"),
            "use \"rwm\", \"rw\" or \"r\"",
        );
    }
    Some(DeviceRequest { host_path, container_path, permissions })
}
