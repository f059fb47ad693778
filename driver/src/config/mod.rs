//! Both `config` blocks: their schema, and their way from msgpack to values that are fit to be used.
//!
//! Nothing in here does I/O. Whoever wrote a block learns all of its mistakes at once, each with its option and a remedy.

mod capabilities;
mod json;
mod mistake;
mod networks;
mod option;
mod pattern;
mod plugin;
mod plugin_options;
mod policy;
#[cfg(test)]
mod reference;
mod schema;
mod task;
mod task_options;
#[cfg(test)]
pub mod testing;
mod value;

pub use json::msgpack;
pub use mistake::{ConfigErrors, Mistake, Mistakes};
pub use networks::DefaultNetwork;
pub use pattern::any_matches;
pub use plugin::{Dangling, ExecPolicy, PluginConfig, decode_plugin};
pub use policy::{Policy, RootChoice};
pub use schema::{plugin_schema, task_schema};
pub use task::{IpcMode, MountRequest, MountSource, NetworkMode, SeccompChoice, TaskSpec, decode_task};
