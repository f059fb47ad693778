//! The plugin block of the nodes: the rules for tasks, and what the block must allow in addition.

use std::{collections::BTreeSet, path::Path};

use runtime::plan::{CAPABILITIES, IdPool};
use serde_json::json;

use crate::{
    apparmor,
    cli::{failure::Failure, settings},
    config::{self, DefaultProfile, Needs, Permission, PluginConfig, Policy},
    name::DriverName,
    plan::{Compute, NodeInfo},
};

/// The nodes on which tasks will run, as their plugin block describes them.
pub struct Nodes {
    /// The plugin block.
    pub config: PluginConfig,
    /// The block's rules, with everything allowed that a block can allow.
    pub permissive: Policy,
    /// A node that has everything that a task may ask for.
    pub info: NodeInfo,
}

impl Nodes {
    /// Reads the plugin block. Without a file it is an empty block of the docker driver.
    pub fn read(file: Option<&Path>) -> Result<Self, Failure> {
        Ok(Self::new(match file {
            Some(path) => settings::of_either(path)?,
            None => config::decode_plugin(&config::from_json(&json!({})), DriverName::Docker).map_err(Failure::of)?,
        }))
    }

    /// Nodes with this plugin block.
    pub fn new(config: PluginConfig) -> Self {
        let info = NodeInfo {
            driver: config.driver,
            compute: Compute { total_mhz: 1000, cores: 1 },
            held_capabilities: CAPABILITIES.iter().map(|name| (*name).to_owned()).collect(),
            state_dir: config.state_dir.clone(),
            host_resolv_conf: "nameserver 192.0.2.1\n".to_owned(),
            host_name: "node".to_owned(),
            apparmor: true,
            default_apparmor: (config.policy.apparmor != DefaultProfile::Unconfined).then(|| apparmor::NAME.to_owned()),
            runtime: Some("/usr/bin/runtime".into()),
            id_pool: Some(IdPool { first: 1 << 20, count: 1 << 20 }),
            volumes_dir: config.data_dir.join("volumes"),
            ..NodeInfo::default()
        };
        Self { permissive: permissive(&config.policy), config, info }
    }

    /// The necessary additions to the plugin block for all of these permissions, one line per option.
    pub fn additions(&self, permissions: &BTreeSet<Permission>) -> Vec<Addition> {
        let mut additions: Vec<Addition> = Vec::new();
        for permission in permissions {
            let of_option = additions.iter_mut().find(|addition| addition.option == permission.option);
            match (&permission.needs, of_option) {
                (Needs::Entries(more), Some(Addition { value: Value::List(list), .. })) => {
                    list.extend(more.iter().filter(|entry| !list.contains(entry)).cloned().collect::<Vec<_>>());
                }
                // The permissions are sorted, so the largest number is the last one.
                (Needs::AtLeast(number), Some(addition)) => addition.value = Value::Number(*number),
                // The smallest number is the first one.
                (_, Some(_)) => {}
                (needs, None) => {
                    let value = match needs {
                        Needs::True => Value::True,
                        Needs::Entries(entries) => Value::List(self.list_with(permission.option, entries)),
                        Needs::AtLeast(number) | Needs::AtMost(number) => Value::Number(*number),
                        Needs::AnyValue => Value::Any,
                    };
                    additions.push(Addition { option: permission.option, value });
                }
            }
        }
        additions
    }

    /// The list that the block has now, or its default, with further entries.
    fn list_with(&self, option: &str, entries: &[String]) -> Vec<String> {
        let policy = &self.config.policy;
        let mut list: Vec<String> = match option {
            _ if entries == ["all"] => Vec::new(),
            "allow_caps" => {
                policy.allow_caps.names.iter().map(|name| name.trim_start_matches("CAP_").to_owned()).collect()
            }
            "allow_devices" => policy.allow_devices.clone(),
            "allow_security_opts" => policy.allow_security_opts.clone(),
            "allow_log_drivers" => policy.allow_log_drivers.clone(),
            // Docker's rules allow every path in docker's options.
            "allow_log_paths" => policy.allow_log_paths.clone().unwrap_or_else(|| vec!["*".to_owned()]),
            "allow_runtimes" => policy.allow_runtimes.clone(),
            "volumes.allow_types" => policy.volume_types.clone(),
            "allowed_modes.pid" => policy.allowed_modes.pid.clone(),
            "allowed_modes.ipc" => policy.allowed_modes.ipc.clone(),
            "allowed_modes.uts" => policy.allowed_modes.uts.clone(),
            "allowed_modes.cgroupns" => policy.allowed_modes.cgroupns.clone(),
            "allowed_modes.userns" => policy.allowed_modes.userns.clone(),
            _ => Vec::new(),
        };
        list.extend(entries.iter().cloned());
        list
    }
}

/// An option of the plugin block with the value that it must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addition {
    /// The option with its block, as in `volumes.enabled`.
    pub option: &'static str,
    /// The value.
    pub value: Value,
}

/// The value of an option of the plugin block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// `true`
    True,
    /// A list of texts.
    List(Vec<String>),
    /// A number.
    Number(i64),
    /// A value that the operator chooses.
    Any,
}

impl Addition {
    /// The lines of HCL.
    pub fn hcl(&self) -> String {
        let value = match &self.value {
            Value::True => "true".to_owned(),
            Value::List(list) => json!(list).to_string().replace("\",\"", "\", \""),
            Value::Number(number) => number.to_string(),
            Value::Any => "…".to_owned(),
        };
        match self.option.split_once('.') {
            Some((block, option)) => format!("{block} {{ {option} = {value} }}"),
            None => format!("{} = {value}", self.option),
        }
    }
}

/// The rules with every permission that a plugin block can give.
fn permissive(policy: &Policy) -> Policy {
    let any = ["*"];
    let block = json!({
        "allow_privileged": true,
        "allow_caps": ["all"],
        "allow_security_opts": any,
        "allow_devices": any,
        "min_oom_score_adj": -1000,
        "allowed_modes": { "pid": any, "ipc": any, "uts": any, "cgroupns": any, "userns": any },
        "allow_log_drivers": any,
        "allow_log_paths": any,
        "volumes": { "enabled": true, "allow_shared": true, "allow_types": any },
    });
    let all = config::decode_plugin(&config::from_json(&block), DriverName::Docker).map(|config| config.policy);
    let all = all.unwrap_or_else(|error| unreachable!("{error}"));
    Policy {
        allow_privileged: true,
        volumes_enabled: true,
        allow_shared: all.allow_shared,
        volume_types: all.volume_types,
        allow_devices: all.allow_devices,
        min_oom_score_adj: all.min_oom_score_adj,
        allow_caps: all.allow_caps,
        allow_security_opts: all.allow_security_opts,
        allowed_modes: all.allowed_modes,
        allow_log_drivers: all.allow_log_drivers,
        allow_log_paths: all.allow_log_paths,
        allow_runtimes: policy.runtimes.names().map(str::to_owned).collect(),
        pids_limit: None,
        ..policy.clone()
    }
}
