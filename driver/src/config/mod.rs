//! The `config` blocks of the driver (the plugin's and the task's) and of the device plugin: their options, and their
//! decoding from msgpack.
//!
//! Nothing here does I/O. The author of a block learns all errors at once, each with the option and a remedy.

mod block;
mod capabilities;
mod device_plugin;
mod duration;
mod error;
mod log_driver;
mod msgpack;
mod option;
mod pattern;
mod plugin;
#[cfg(test)]
mod reference;
mod task;
#[cfg(test)]
mod tests;

pub use device_plugin::{DevicePluginConfig, OPTIONS as DEVICE_PLUGIN_OPTIONS, decode as decode_device_plugin};
pub use error::{ConfigError, ConfigErrors, ErrorCollector, Needs, Permission};
pub use msgpack::{from_json, to_json};
pub use option::{DefaultValue, OptionSpec, OptionType};
pub use pattern::{any_matches, matches};
pub use plugin::{
    Dangling, DefaultNetwork, DefaultProfile, ExecPolicy, IdSource, LogOptions, MetricsAddress, NVIDIA_RUNTIME,
    OPTIONS as PLUGIN_OPTIONS, PluginConfig, Policy, PrefetchOptions, RootChoice, RuntimeChoice, TraceOptions,
    UserNamespaceMode, decode_plugin,
};
pub use task::{
    AppArmorChoice, DnsOptions, ExtraHost, IpcMode, LabelOption, LabelPart, MountRequest, MountSource, NetworkMode,
    OPTIONS as TASK_OPTIONS, SeccompChoice, TaskSpec, VOLUMES_ALLOWED, check_permitted, check_volume_type, decode_task,
};
