//! The commands' configuration: the plugin block as JSON, because only Nomad reads the agent's HCL.

use std::{fs, path::Path};

use serde_json::Value;

use super::{arguments::ImageArguments, failure::Failure};
use crate::{
    config::{self, PluginConfig},
    name::DriverName,
};

/// The configuration that a command uses.
pub struct Settings {
    /// The plugin block.
    pub config: PluginConfig,
    /// The block was read from `--config`, so that `state_dir` and `gc` are the plugin's and not defaults.
    pub is_plugins: bool,
}

impl Settings {
    /// Reads `--config`. `--data-dir` overrides its `data_dir`.
    pub fn read(arguments: &ImageArguments) -> Result<Self, Failure> {
        let mut settings = match &arguments.config {
            Some(path) => Self { config: read(path, &[DriverName::OciRs, DriverName::Docker])?, is_plugins: true },
            None => Self { config: PluginConfig::default(), is_plugins: false },
        };
        if let Some(data_dir) = &arguments.data_dir {
            let absolute = std::path::absolute(data_dir);
            settings.config.data_dir = absolute.map_err(|error| Failure::Failed(format!("{data_dir:?}: {error}")))?;
        }
        Ok(settings)
    }
}

/// The plugin block of the name `docker`; defaults without a file.
pub fn of_docker(path: Option<&Path>) -> Result<PluginConfig, Failure> {
    match path {
        Some(path) => read(path, &[DriverName::Docker]),
        None => Ok(PluginConfig { driver: DriverName::Docker, ..PluginConfig::default() }),
    }
}

/// The plugin block of the name `docker`, or that of `oci-rs` if the file holds no other.
pub fn of_either(path: &Path) -> Result<PluginConfig, Failure> {
    read(path, &[DriverName::Docker, DriverName::OciRs])
}

/// Reads a file. In an agent's configuration it takes the block of the first of these names. A file that is the block
/// itself has the first name.
fn read(path: &Path, names: &[DriverName]) -> Result<PluginConfig, Failure> {
    let failed = |problem: String| Failure::Failed(format!("{}: {problem}", path.display()));
    let text = fs::read(path).map_err(|error| failed(error.to_string()))?;
    let json: Value = serde_json::from_slice(&text)
        .map_err(|error| failed(format!("is not JSON: {error}; write the plugin's config block as JSON")))?;
    let no_block = || failed("holds no plugin \"oci-rs\" or \"docker\" block with a config".to_owned());
    let (driver, block) = block(&json, names).ok_or_else(no_block)?;
    config::decode_plugin(&config::from_json(block), driver).map_err(|error| failed(error.to_string()))
}

/// The plugin block and the name of its driver: the whole document, or a part of an agent's configuration.
fn block<'a>(json: &'a Value, names: &[DriverName]) -> Option<(DriverName, &'a Value)> {
    let Some(plugins) = inside(json, "plugin") else { return Some((*names.first()?, json)) };
    names.iter().find_map(|name| Some((*name, inside(inside(plugins, name.as_str())?, "config")?)))
}

/// The block with this name. In an agent's configuration a block may stand in a list.
fn inside<'a>(json: &'a Value, name: &str) -> Option<&'a Value> {
    match json {
        Value::Object(fields) => fields.get(name),
        Value::Array(items) => items.iter().find_map(|item| inside(item, name)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::block;
    use crate::name::DriverName::{Docker, OciRs};

    #[test]
    fn the_block_is_found_alone_and_in_an_agents_configuration() {
        let config = json!({ "data_dir": "/srv/x" });
        for whole in [
            config.clone(),
            json!({ "plugin": { "oci-rs": { "config": config } } }),
            json!({ "client": {}, "plugin": [{ "raw_exec": [{}] }, { "oci-rs": [{ "config": config }] }] }),
        ] {
            assert_eq!(block(&whole, &[OciRs, Docker]), Some((OciRs, &config)), "{whole}");
        }
        let docker = json!({ "plugin": [{ "docker": [{ "config": [config] }] }, { "raw_exec": [{}] }] });
        for names in [&[OciRs, Docker][..], &[Docker]] {
            assert_eq!(block(&docker, names), Some((Docker, &json!([config]))));
        }
        let both = json!({ "plugin": { "oci-rs": { "config": 1 }, "docker": { "config": 2 } } });
        assert_eq!(block(&both, &[OciRs, Docker]), Some((OciRs, &json!(1))));
        assert_eq!(block(&both, &[Docker, OciRs]), Some((Docker, &json!(2))));
        let other = json!({ "plugin": { "oci-rs": { "config": config } } });
        assert_eq!(block(&other, &[Docker]), None, "its directories may differ");
        assert_eq!(block(&other, &[Docker, OciRs]), Some((OciRs, &config)));
        assert_eq!(block(&config, &[Docker, OciRs]), Some((Docker, &config)));
        assert_eq!(block(&json!({ "plugin": { "docker": {} } }), &[OciRs, Docker]), None);
        assert_eq!(block(&json!({ "plugin": { "raw_exec": { "config": {} } } }), &[OciRs, Docker]), None);
    }
}
