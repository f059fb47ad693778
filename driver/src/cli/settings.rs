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
            Some(path) => Self { config: read(path, DriverName::OciRs)?, is_plugins: true },
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
        Some(path) => read(path, DriverName::Docker),
        None => Ok(PluginConfig { driver: DriverName::Docker, ..PluginConfig::default() }),
    }
}

/// Reads a file. In an agent's configuration the block of the `preferred` name comes first.
fn read(path: &Path, preferred: DriverName) -> Result<PluginConfig, Failure> {
    let failed = |problem: String| Failure::Failed(format!("{}: {problem}", path.display()));
    let text = fs::read(path).map_err(|error| failed(error.to_string()))?;
    let json: Value = serde_json::from_slice(&text)
        .map_err(|error| failed(format!("is not JSON: {error}; write the plugin's config block as JSON")))?;
    let no_block = || failed("holds no plugin \"oci-rs\" or \"docker\" block with a config".to_owned());
    let (driver, block) = block(&json, preferred).ok_or_else(no_block)?;
    config::decode_plugin(&config::from_json(block), driver).map_err(|error| failed(error.to_string()))
}

/// The plugin block and the name of its driver: the whole document, or a part of an agent's configuration.
fn block(json: &Value, preferred: DriverName) -> Option<(DriverName, &Value)> {
    let Some(plugins) = inside(json, "plugin") else { return Some((preferred, json)) };
    let of = |driver: DriverName| Some((driver, inside(inside(plugins, driver.as_str())?, "config")?));
    match preferred {
        DriverName::OciRs => of(DriverName::OciRs).or_else(|| of(DriverName::Docker)),
        DriverName::Docker => of(DriverName::Docker),
    }
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
            assert_eq!(block(&whole, OciRs), Some((OciRs, &config)), "{whole}");
        }
        let docker = json!({ "plugin": [{ "docker": [{ "config": [config] }] }, { "raw_exec": [{}] }] });
        for preferred in [OciRs, Docker] {
            assert_eq!(block(&docker, preferred), Some((Docker, &json!([config]))));
        }
        let both = json!({ "plugin": { "oci-rs": { "config": 1 }, "docker": { "config": 2 } } });
        assert_eq!((block(&both, OciRs), block(&both, Docker)), (Some((OciRs, &json!(1))), Some((Docker, &json!(2)))));
        let other = json!({ "plugin": { "oci-rs": { "config": config } } });
        assert_eq!(block(&other, Docker), None, "its directories may differ");
        assert_eq!(block(&config, Docker), Some((Docker, &config)));
        assert_eq!(block(&json!({ "plugin": { "docker": {} } }), OciRs), None);
        assert_eq!(block(&json!({ "plugin": { "raw_exec": { "config": {} } } }), OciRs), None);
    }
}
