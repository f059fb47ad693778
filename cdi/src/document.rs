//! The documents: their fields in JSON and YAML.
//!
//! Fields that the specification does not have are errors, so that no part of a device is left out unseen. A `null`
//! counts as an absent field.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

use crate::name::Kind;

/// A document that is not a valid spec. The text names the field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SpecError(pub String);

/// One document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Spec {
    /// The version of the specification.
    pub cdi_version: String,
    /// The kind of all devices of the document.
    pub kind: String,
    /// Further facts about the document.
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The devices.
    #[serde(default, deserialize_with = "nullable")]
    pub devices: Vec<Device>,
    /// The edits for a container with any device of the document.
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "ContainerEdits::is_empty")]
    pub container_edits: ContainerEdits,
}

/// A device of a document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Device {
    /// The name within the document's kind.
    pub name: String,
    /// Further facts about the device.
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The edits for a container with this device.
    #[serde(default, deserialize_with = "nullable")]
    pub container_edits: ContainerEdits,
}

/// The changes of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContainerEdits {
    /// Variables of the environment, as `NAME=value`.
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Device nodes.
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub device_nodes: Vec<DeviceNode>,
    /// Network interfaces of the node that move to the container. Since version 1.1.0.
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub net_devices: Vec<NetDevice>,
    /// Mounts.
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// Programs that run while the container is made and removed.
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<Hook>,
    /// Cache and memory bandwidth. Since version 0.7.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intel_rdt: Option<IntelRdt>,
    /// Additional groups of the container's command. Since version 0.7.0.
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub additional_gids: Vec<u32>,
}

/// The type of a device node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeType {
    /// A block device.
    #[serde(rename = "b")]
    Block,
    /// A character device.
    #[serde(rename = "c")]
    Character,
    /// An unbuffered character device, which is a character device on Linux.
    #[serde(rename = "u")]
    Unbuffered,
    /// A FIFO.
    #[serde(rename = "p")]
    Fifo,
}

/// A device node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeviceNode {
    /// The path in the container.
    pub path: String,
    /// The path on the node, if it is another one. Since version 0.5.0.
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "String::is_empty")]
    pub host_path: String,
    /// The type. `None`: that of the node's file.
    #[serde(rename = "type", default, deserialize_with = "node_type", skip_serializing_if = "Option::is_none")]
    pub node_type: Option<NodeType>,
    /// The major number. 0: that of the node's file.
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "is_zero")]
    pub major: i64,
    /// The minor number.
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "is_zero")]
    pub minor: i64,
    /// The permission bits. `None`: those of the node's file.
    #[serde(default, deserialize_with = "file_mode", skip_serializing_if = "Option::is_none")]
    pub file_mode: Option<u32>,
    /// The rights in the cgroup: letters of `rwm`. Empty: all. `none`: none.
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "String::is_empty")]
    pub permissions: String,
    /// The owner. `None`: the user of the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The group. `None`: the group of the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
}

/// A network interface.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetDevice {
    /// The name on the node.
    pub host_interface_name: String,
    /// The name in the container.
    pub name: String,
}

/// A mount.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Mount {
    /// The source.
    pub host_path: String,
    /// The place in the container.
    pub container_path: String,
    /// Options of the mount.
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    /// The type of the file system. Since version 0.4.0.
    #[serde(rename = "type", default, deserialize_with = "nullable", skip_serializing_if = "String::is_empty")]
    pub mount_type: String,
}

/// The moment at which a hook runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum HookStage {
    /// The older name of [`HookStage::CreateRuntime`].
    Prestart,
    /// Before the root is entered, in the node's namespaces.
    CreateRuntime,
    /// Before the root is entered, in the container's namespaces.
    CreateContainer,
    /// In the container, before the command.
    StartContainer,
    /// After the command began, in the node's namespaces.
    #[serde(rename = "poststart")]
    PostStart,
    /// After the container was removed, in the node's namespaces.
    #[serde(rename = "poststop")]
    PostStop,
}

/// A program that runs while the container is made or removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Hook {
    /// When it runs.
    pub hook_name: HookStage,
    /// The program.
    pub path: String,
    /// Its arguments; the first one is its name.
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Its environment, as `NAME=value`.
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// The number of seconds after which it is ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
}

/// Cache and memory bandwidth of the container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IntelRdt {
    /// The class of service.
    #[serde(rename = "closID", default, deserialize_with = "nullable", skip_serializing_if = "String::is_empty")]
    pub clos_id: String,
    /// The schema of the cache of level 3.
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "String::is_empty")]
    pub l3_cache_schema: String,
    /// The schema of the memory bandwidth.
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "String::is_empty")]
    pub mem_bw_schema: String,
    /// Schemata. Since version 1.1.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schemata: Option<Vec<String>>,
    /// Whether the class is monitored. Since version 1.1.0.
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "std::ops::Not::not")]
    pub enable_monitoring: bool,
}

impl Spec {
    /// The kind of the devices. A document that was read has a valid one.
    pub fn parsed_kind(&self) -> Result<Kind, SpecError> {
        self.kind.parse().map_err(|error| SpecError(format!("kind: {error}")))
    }
}

impl ContainerEdits {
    /// Whether they change nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Appends others. Only one of all values of `intelRdt` counts: the last one.
    pub fn append(&mut self, other: &Self) {
        self.env.extend_from_slice(&other.env);
        self.device_nodes.extend_from_slice(&other.device_nodes);
        self.net_devices.extend_from_slice(&other.net_devices);
        self.mounts.extend_from_slice(&other.mounts);
        self.hooks.extend_from_slice(&other.hooks);
        self.additional_gids.extend_from_slice(&other.additional_gids);
        if other.intel_rdt.is_some() {
            self.intel_rdt.clone_from(&other.intel_rdt);
        }
    }
}

impl DeviceNode {
    /// The path on the node.
    pub fn path_on_node(&self) -> &str {
        if self.host_path.is_empty() { &self.path } else { &self.host_path }
    }
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// A value, or its default for `null`.
fn nullable<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Option::<T>::deserialize(from).map(Option::unwrap_or_default)
}

/// An empty type means that of the node's file.
fn node_type<'de, D: Deserializer<'de>>(from: D) -> Result<Option<NodeType>, D::Error> {
    Ok(match Option::<String>::deserialize(from)?.as_deref() {
        None | Some("") => None,
        Some("b") => Some(NodeType::Block),
        Some("c") => Some(NodeType::Character),
        Some("u") => Some(NodeType::Unbuffered),
        Some("p") => Some(NodeType::Fifo),
        Some(other) => return Err(D::Error::custom(format!("type {other:?} is not b, c, u or p"))),
    })
}

/// A number. YAML 1.1, which the reference implementation reads, writes octal ones with a leading 0, as in `0660`.
fn file_mode<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Mode {
        Number(u32),
        Text(String),
    }
    match Option::<Mode>::deserialize(from)? {
        None => Ok(None),
        Some(Mode::Number(number)) => Ok(Some(number)),
        Some(Mode::Text(text)) => {
            let octal = text.strip_prefix('0').filter(|digits| digits.bytes().all(|c| c.is_ascii_digit()));
            let number = octal.and_then(|digits| u32::from_str_radix(digits, 8).ok());
            number.map(Some).ok_or_else(|| D::Error::custom(format!("fileMode {text:?} is not a number")))
        }
    }
}
