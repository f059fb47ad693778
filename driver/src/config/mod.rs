//! The two `config` blocks of the driver, the plugin's and the task's: their options, and their decoding from msgpack.
//!
//! Nothing here does I/O. The author of a block learns all errors at once, each with the option and a remedy.

mod capabilities;
mod error;
mod json;
mod networks;
mod option;
mod pattern;
mod plugin;
mod plugin_options;
mod policy;
#[cfg(test)]
mod reference;
mod task;
mod task_options;
#[cfg(test)]
pub mod testing;
mod value;

pub use error::{ConfigError, ConfigErrors, ErrorCollector};
pub use json::msgpack;
pub use networks::DefaultNetwork;
pub use option::{DefaultValue, OptionSpec, OptionType};
pub use pattern::any_matches;
pub use plugin::{Dangling, ExecPolicy, PluginConfig, decode_plugin};
pub use plugin_options::PLUGIN as PLUGIN_OPTIONS;
pub use policy::{Policy, RootChoice};
pub use task::{
    DnsOptions, ExtraHost, IpcMode, MountRequest, MountSource, NetworkMode, SeccompChoice, TaskSpec, decode_task,
};
pub use task_options::TASK as TASK_OPTIONS;
