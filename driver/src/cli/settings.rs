//! The commands' configuration: what the node's plugins have left, or the plugin block of a file.

use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use super::{agent_config, arguments::NodeArguments, failure::Failure, output};
use crate::{
    config::{self, PluginConfig},
    name::DriverName,
    pointer::{self, Pointer, Pointers},
};

/// The configuration that a command uses.
#[derive(Clone)]
pub struct Settings {
    /// The plugin block.
    pub config: PluginConfig,
    /// The block is the plugin's, so that `state_dir` and `gc` are the plugin's and not defaults.
    pub is_plugins: bool,
    /// Why this build does not understand the plugin's block, if so. Then there are defaults in its place.
    pub unknown_config: Option<String>,
    /// The name whose containers the command is about; `None` is every name.
    pub only: Option<DriverName>,
}

impl Settings {
    /// Those of each plugin of this node. Options that name a file or a directory win over what plugins have left.
    /// Without a plugin and options, there are the defaults.
    pub fn all(arguments: &NodeArguments) -> Result<Vec<Self>, Failure> {
        let NodeArguments { config, data_dir, state_dir, plugin, .. } = arguments;
        if names_nothing(arguments) {
            need_root()?;
            let left = left(*plugin);
            if !left.is_empty() {
                return Ok(left);
            }
        }
        let names = plugin.map_or(vec![DriverName::OciRs, DriverName::Docker], |name| vec![name]);
        let mut settings = match config {
            Some(path) => Self::with(agent_config::read(path, &names)?, true, *plugin),
            None => Self::with(PluginConfig::default(), false, *plugin),
        };
        if let Some(directory) = data_dir {
            settings.config.data_dir = absolute(directory)?;
        }
        if let Some(directory) = state_dir {
            settings.config.state_dir = absolute(directory)?;
        }
        Ok(vec![settings])
    }

    /// Those of a command that needs neither a node nor root. A user who may not read what plugins have left gets the
    /// defaults.
    pub fn without_node(arguments: &NodeArguments) -> Result<Self, Failure> {
        if names_nothing(arguments) && !geteuid().is_root() {
            return Ok(Self::with(PluginConfig::default(), false, arguments.plugin));
        }
        Self::one(arguments)
    }

    fn with(config: PluginConfig, is_plugins: bool, only: Option<DriverName>) -> Self {
        Self { config, is_plugins, unknown_config: None, only }
    }

    /// Those of the node's only plugin, or of both if they share their images.
    pub fn one(arguments: &NodeArguments) -> Result<Self, Failure> {
        let mut all = Self::all(arguments)?;
        let directories: Vec<String> =
            all.iter().map(|settings| settings.config.data_dir.display().to_string()).collect();
        if directories.iter().any(|directory| *directory != directories[0]) {
            return Err(Failure::Failed(format!(
                "this node has plugins with different directories ({}): choose one with --plugin",
                directories.join(", ")
            )));
        }
        Ok(all.swap_remove(0))
    }
}

/// Whether no option names a file or a directory.
fn names_nothing(arguments: &NodeArguments) -> bool {
    let NodeArguments { config, data_dir, state_dir, .. } = arguments;
    config.is_none() && data_dir.is_none() && state_dir.is_none()
}

/// Fails for a user who may not read what plugins have left.
fn need_root() -> Result<(), Failure> {
    if geteuid().is_root() {
        return Ok(());
    }
    Err(Failure::Failed("what the plugins of this node have left is for root alone: run this as root".to_owned()))
}

/// What the plugins of these names have left. Problems are written to standard error.
fn left(only: Option<DriverName>) -> Vec<Settings> {
    let Pointers { found, problems } = pointer::found();
    let mut settings = Vec::new();
    for pointer in found {
        match DriverName::parse(&pointer.driver) {
            Ok(driver) if only.is_none_or(|only| only == driver) => settings.push(of_pointer(pointer, driver)),
            _ => {}
        }
    }
    problems.iter().for_each(output::note);
    settings
}

/// The settings of a pointer. If a newer plugin knows an option that this build does not know, there are defaults for
/// everything but the directories.
fn of_pointer(pointer: Pointer, driver: DriverName) -> Settings {
    let decoded = config::decode_plugin(&config::from_json(&pointer.config), driver);
    let unknown_config = decoded.as_ref().err().map(ToString::to_string);
    let mut config = decoded.unwrap_or_else(|error| {
        output::note(format_args!("the configuration of plugin {driver} is not used: {error}"));
        PluginConfig { driver, ..PluginConfig::default() }
    });
    (config.state_dir, config.data_dir) = (pointer.state_dir, pointer.data_dir);
    Settings { config, is_plugins: unknown_config.is_none(), unknown_config, only: Some(driver) }
}

fn absolute(directory: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(directory).map_err(|error| Failure::Failed(format!("{directory:?}: {error}")))
}

/// The plugin block of the name `docker`: of a file, or what the plugin has left, or the defaults.
pub fn of_docker(path: Option<&Path>) -> Result<PluginConfig, Failure> {
    match path {
        Some(path) => agent_config::read(path, &[DriverName::Docker]),
        None => {
            need_root()?;
            Ok(left(Some(DriverName::Docker)).pop().map_or_else(
                || PluginConfig { driver: DriverName::Docker, ..PluginConfig::default() },
                |settings| settings.config,
            ))
        }
    }
}

/// The plugin block of the name `docker`, or that of `oci-rs` if the file holds no other.
pub fn of_either(path: &Path) -> Result<PluginConfig, Failure> {
    agent_config::read(path, &[DriverName::Docker, DriverName::OciRs])
}
