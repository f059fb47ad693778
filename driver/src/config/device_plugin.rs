//! The `config` block of the device plugin: its options and their decoding.

use std::{collections::BTreeMap, path::PathBuf};

use super::{
    block::ConfigBlock,
    error::{ConfigErrors, ErrorCollector},
    msgpack,
    option::{
        DefaultValue::{Literal, Words},
        OptionSpec, OptionType,
    },
    pattern::any_matches,
};

/// The name of the block in error texts.
const BLOCK: &str = "plugin config";

/// The most devices that one device can count as.
const MOST_REPLICAS: u64 = 1024;

/// The options of `config` in `plugin "oci-rs-cdi"`.
pub const OPTIONS: &[OptionSpec] = &[
    OptionSpec::honoured(
        "spec_dirs",
        OptionType::Strings,
        Literal(r#"["/etc/cdi","/var/run/cdi"]"#),
        "directories of CDI specs. The driver's `cdi_spec_dirs` must be the same",
    ),
    OptionSpec::honoured(
        "kinds",
        OptionType::Strings,
        Literal(r#"["*"]"#),
        "the kinds of devices that the plugin offers, as patterns with `*`",
    ),
    OptionSpec::honoured(
        "kind",
        OptionType::Labelled("kind", KIND),
        Words("none"),
        "settings for the devices of one kind, as in `kind \"vendor.com/class\" { … }`",
    ),
];

const KIND: &[OptionSpec] = &[
    OptionSpec::honoured(
        "name",
        OptionType::String,
        Words("the annotation `oci-rs/name` of device or spec, or `cdi`"),
        "Nomad's name of the devices, the third part of `vendor/type/name`",
    ),
    OptionSpec::honoured(
        "replicas",
        OptionType::Number,
        Words("1"),
        "the number of tasks that can have one device at the same time. They are not isolated from each other",
    ),
];

/// The plugin block's values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DevicePluginConfig {
    /// Directories of specs. Later ones have the higher priority.
    pub spec_dirs: Vec<PathBuf>,
    /// Patterns of the kinds that are offered.
    kinds: Vec<String>,
    settings: BTreeMap<String, KindSettings>,
}

/// Settings for the devices of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindSettings {
    /// Nomad's name of the devices.
    pub name: Option<String>,
    /// The number of devices that each device counts as. At least 1.
    pub replicas: u64,
}

impl Default for KindSettings {
    fn default() -> Self {
        Self { name: None, replicas: 1 }
    }
}

impl Default for DevicePluginConfig {
    fn default() -> Self {
        let spec_dirs = cdi::DEFAULT_DIRECTORIES.map(PathBuf::from).to_vec();
        Self { spec_dirs, kinds: vec!["*".to_owned()], settings: BTreeMap::new() }
    }
}

impl DevicePluginConfig {
    /// Whether devices of this kind are offered.
    pub fn offers(&self, kind: &str) -> bool {
        any_matches(&self.kinds, kind)
    }

    /// The settings of a kind.
    pub fn settings(&self, kind: &str) -> KindSettings {
        self.settings.get(kind).cloned().unwrap_or_default()
    }
}

/// Decodes the plugin block. The error holds all errors of the block.
pub fn decode(bytes: &[u8]) -> Result<DevicePluginConfig, ConfigErrors> {
    let errors = ErrorCollector::default();
    let value = msgpack::decode(bytes, &errors);
    let config = read(&ConfigBlock::new(&value, OPTIONS, &errors));
    errors.result(BLOCK, config)
}

fn read(block: &ConfigBlock) -> DevicePluginConfig {
    let default = DevicePluginConfig::default();
    let mut settings = BTreeMap::new();
    for (kind, block) in block.labelled("kind") {
        if let Err(error) = kind.parse::<cdi::Kind>() {
            block.errors.add(block.path(), error.to_string(), "write it as in `kind \"nvidia.com/gpu\"`");
        }
        let replicas = block.non_negative("replicas").unwrap_or(1);
        if !(1..=MOST_REPLICAS).contains(&replicas) {
            block.error("replicas", format!("{replicas} is not possible"), format!("write 1 to {MOST_REPLICAS}"));
        }
        settings.insert(kind, KindSettings { name: block.string("name"), replicas });
    }
    DevicePluginConfig {
        spec_dirs: block.absolute_paths("spec_dirs").unwrap_or(default.spec_dirs),
        kinds: block.strings_if_set("kinds").unwrap_or(default.kinds),
        settings,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;

    fn decoded(block: Json) -> Result<DevicePluginConfig, String> {
        decode(&msgpack::from_json(&block)).map_err(|errors| errors.to_string())
    }

    #[test]
    fn the_block_has_defaults_and_settings_of_kinds() {
        assert_eq!(decode(b""), Ok(DevicePluginConfig::default()));
        let config = decoded(json!({
            "spec_dirs": ["/a", "/b"],
            "kinds": ["vendor.com/*"],
            "kind": { "vendor.com/gpu": { "name": "a100", "replicas": 4 } },
        }));
        let config = config.unwrap();
        assert_eq!(config.spec_dirs, [PathBuf::from("/a"), PathBuf::from("/b")]);
        assert!(config.offers("vendor.com/gpu") && !config.offers("nvidia.com/gpu"));
        assert_eq!(config.settings("vendor.com/gpu"), KindSettings { name: Some("a100".into()), replicas: 4 });
        assert_eq!(config.settings("vendor.com/fpga"), KindSettings::default());
    }

    #[test]
    fn errors_name_option_and_remedy() {
        for (block, problem) in [
            (json!({ "spec_dirs": ["cdi"] }), "spec_dirs: \"cdi\" is not an absolute path (begin it with /)"),
            (json!({ "kind": { "gpu": {} } }), "kind[\"gpu\"]: \"gpu\" is not of the form vendor.com/class"),
            (json!({ "kind": { "v/c": { "replicas": 0 } } }), "kind[\"v/c\"].replicas: 0 is not possible (write 1 to"),
            (json!({ "kind": { "v/c": { "replicas": -1 } } }), "kind[\"v/c\"].replicas: cannot be negative"),
            (json!({ "specs": [] }), "specs: is no option of this driver"),
        ] {
            let error = decoded(block.clone()).unwrap_err();
            assert!(error.contains(problem), "{block}: {error}");
        }
    }
}
