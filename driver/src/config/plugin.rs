//! The plugin block: folders, registries, and what tasks may do.

use std::{path::PathBuf, time::Duration};

use image_store::{RegistryConfig, Secret};

use super::{
    capabilities::Written,
    mistake::{ConfigErrors, Mistakes},
    plugin_options::{DEFAULT_ALLOW_CAPS, PLUGIN},
    value::{self, Reader},
};

/// How the operator calls it.
const BLOCK: &str = "plugin config";

/// The plugin block's values.
#[derive(Debug, Clone)]
pub struct PluginConfig {
    /// State of running tasks.
    pub state_dir: PathBuf,
    /// Images and writable layers.
    pub data_dir: PathBuf,
    /// Where the log goes beside the agent's.
    pub log_file: Option<PathBuf>,
    /// How to reach registries.
    pub registries: Vec<RegistryConfig>,
    /// What tasks may do.
    pub policy: Policy,
    /// How long a pull may take in all, unless the task says.
    pub image_pull_timeout: Duration,
    /// How long a pull may stand still.
    pub pull_activity_timeout: Duration,
}

/// What tasks may do, and what they get without asking.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// `privileged` is allowed.
    pub allow_privileged: bool,
    /// Host paths outside the allocation's folder are allowed.
    pub volumes_enabled: bool,
    /// Default and ceiling of `pids_limit`.
    pub pids_limit: Option<i64>,
    /// Patterns of labels that containers get beside `alloc_id`.
    pub extra_labels: Vec<String>,
    /// Ceiling of capabilities.
    pub(super) allow_caps: Written,
}

impl Default for Policy {
    fn default() -> Self {
        let defaults: Vec<String> = DEFAULT_ALLOW_CAPS
            .split('"')
            .filter(|part| part.starts_with(char::is_alphabetic))
            .map(str::to_owned)
            .collect();
        Self {
            allow_privileged: false,
            volumes_enabled: false,
            pids_limit: None,
            extra_labels: Vec::new(),
            allow_caps: Written::read(&defaults).0,
        }
    }
}

impl Default for PluginConfig {
    fn default() -> Self {
        Self {
            state_dir: PathBuf::from("/run/oci-rs"),
            data_dir: PathBuf::from("/var/lib/oci-rs"),
            log_file: None,
            registries: Vec::new(),
            policy: Policy::default(),
            image_pull_timeout: Duration::from_secs(5 * 60),
            pull_activity_timeout: Duration::from_secs(2 * 60),
        }
    }
}

/// Reads the plugin block.
pub fn decode_plugin(msgpack: &[u8]) -> Result<PluginConfig, ConfigErrors> {
    let mistakes = Mistakes::default();
    let root = value::decode(msgpack, &mistakes);
    let config = read(&Reader::new(&root, PLUGIN, &mistakes));
    mistakes.result(BLOCK, config)
}

fn read(block: &Reader) -> PluginConfig {
    let default = PluginConfig::default();
    let config = PluginConfig {
        state_dir: absolute(block, "state_dir").unwrap_or(default.state_dir),
        data_dir: absolute(block, "data_dir").unwrap_or(default.data_dir),
        log_file: absolute(block, "log_file"),
        registries: block.labelled("registry").iter().map(|(host, block)| registry(host, block)).collect(),
        policy: policy(block),
        image_pull_timeout: block.duration("image_pull_timeout").unwrap_or(default.image_pull_timeout),
        pull_activity_timeout: block.duration("pull_activity_timeout").unwrap_or(default.pull_activity_timeout),
    };
    if config.state_dir.starts_with(&config.data_dir) || config.data_dir.starts_with(&config.state_dir) {
        block.mistake("state_dir", "lies within data_dir, or the other way round", "give each a folder of its own");
    }
    config
}

fn absolute(block: &Reader, option: &str) -> Option<PathBuf> {
    let path = PathBuf::from(block.string(option)?);
    if !path.is_absolute() {
        block.mistake(option, format!("{path:?} is not an absolute path"), "begin it with /");
        return None;
    }
    Some(path)
}

fn policy(block: &Reader) -> Policy {
    let default = Policy::default();
    let allow_caps = match block.strings_if_set("allow_caps") {
        None => default.allow_caps,
        Some(list) => {
            let (allowed, unknown) = Written::read(&list);
            for name in unknown {
                block.mistake("allow_caps", format!("{name:?} is no capability"), "see capabilities(7) for the names");
            }
            allowed
        }
    };
    Policy {
        allow_privileged: block.bool("allow_privileged"),
        volumes_enabled: block.block("volumes").bool("enabled"),
        pids_limit: block.positive("pids_limit").map(|limit| i64::try_from(limit).unwrap_or(i64::MAX)),
        extra_labels: block.strings("extra_labels"),
        allow_caps,
    }
}

fn registry(host: &str, block: &Reader) -> RegistryConfig {
    for (name, what) in
        std::iter::once((host, "registry")).chain(block.strings("mirrors").iter().map(|m| (m.as_str(), "mirrors")))
    {
        if name.is_empty() || name.contains(['/', ' ', '@', '?', '#']) {
            block.mistake(
                what,
                format!("{name:?} is not a registry's host"),
                "write only the host and its port, as in \"registry.example:5000\"",
            );
        }
    }
    let auth = block.block("auth");
    let (username, password) = (auth.string("username"), auth.string("password"));
    if username.is_some() != password.is_some() {
        block.mistake("auth", "needs both username and password", "set the missing one, or remove the block");
    }
    RegistryConfig {
        host: host.to_owned(),
        plain_http: block.bool("plain_http"),
        ca_file: absolute(block, "ca_file"),
        mirrors: block.strings("mirrors"),
        insecure_skip_verify: block.bool("insecure_skip_verify"),
        username,
        password: password.map(Secret::new),
    }
}
