//! Where the store is and how registries are reached: the plugin block again, as JSON, because Nomad alone reads the
//! agent's HCL.

use std::{fs, path::Path};

use serde_json::Value;

use super::{ImageArguments, failure::Failure};
use crate::config::{self, PluginConfig};

/// What the command runs with, and whether the plugin's own block said so.
pub struct Settings {
    /// The plugin block.
    pub config: PluginConfig,
    /// The block is the plugin's: `state_dir` is known, not assumed.
    pub known: bool,
}

impl Settings {
    /// Reads `--config`, then lets `--data-dir` win.
    pub fn read(arguments: &ImageArguments) -> Result<Self, Failure> {
        let mut settings = match &arguments.config {
            Some(path) => Self { config: read(path)?, known: true },
            None => Self { config: PluginConfig::default(), known: false },
        };
        if let Some(data_dir) = &arguments.data_dir {
            let absolute = std::path::absolute(data_dir);
            settings.config.data_dir = absolute.map_err(|error| Failure::Failed(format!("{data_dir:?}: {error}")))?;
        }
        Ok(settings)
    }
}

fn read(path: &Path) -> Result<PluginConfig, Failure> {
    let tell = |problem: String| Failure::Failed(format!("{}: {problem}", path.display()));
    let text = fs::read(path).map_err(|error| tell(error.to_string()))?;
    let json: Value = serde_json::from_slice(&text)
        .map_err(|error| tell(format!("is not JSON: {error}; write the plugin's config block as JSON")))?;
    let block = block(&json).ok_or_else(|| tell("holds no plugin \"oci-rs\" block with a config".to_owned()))?;
    config::decode_plugin(&config::from_json(block)).map_err(|error| tell(error.to_string()))
}

/// The block itself, or the one in an agent's configuration. Pure.
fn block(json: &Value) -> Option<&Value> {
    match inside(json, "plugin") {
        None => Some(json),
        Some(plugins) => inside(inside(plugins, "oci-rs")?, "config"),
    }
}

/// A block's content by its name; the agent takes a block with or without a list around it.
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

    #[test]
    fn the_block_is_found_alone_and_in_an_agents_file() {
        let config = json!({ "data_dir": "/srv/x" });
        for whole in [
            config.clone(),
            json!({ "plugin": { "oci-rs": { "config": config } } }),
            json!({ "client": {}, "plugin": [{ "raw_exec": [{}] }, { "oci-rs": [{ "config": config }] }] }),
        ] {
            assert_eq!(block(&whole), Some(&config), "{whole}");
        }
        assert_eq!(block(&json!({ "plugin": { "docker": {} } })), None);
    }
}
