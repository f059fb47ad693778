//! The check of one task: the same decoding and planning as at its start, without an image and a node.
//!
//! A plugin block can allow some refused values. Each task is therefore checked twice: with the nodes' rules, and with
//! rules that allow everything. An error of the second check needs a change of the job.

use std::collections::BTreeSet;

use image_store::{Image, ImageConfig};
use serde_json::Value as Json;

use super::{
    change,
    difference::{self, Difference, Subject},
    interpolation::{self, Unchecked},
    job::DockerTask,
    node::Nodes,
};
use crate::{
    config::{self, ConfigError, Needs, Permission, PluginConfig, Policy, TaskSpec},
    name::DriverName,
    plan::{self, NomadTask, TaskContext},
};

/// The number of changes after which a task is given up. A task has few options.
const MOST_CHANGES: usize = 64;

/// What will happen to a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// It runs as with docker.
    Unchanged,
    /// It runs, with differences.
    Differs,
    /// The driver refuses it.
    Change,
}

impl Verdict {
    /// The verdict's name in the output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unchanged => "unchanged",
            Self::Differs => "differs",
            Self::Change => "change",
        }
    }
}

/// The result of the check of a task.
#[derive(Debug)]
pub struct Assessment {
    /// What differs from docker.
    pub differences: Vec<Difference>,
    /// Values that the driver refuses.
    pub refusals: Vec<Refusal>,
    /// What the plugin block must allow in addition.
    pub permissions: BTreeSet<Permission>,
    /// Options that depend on the node.
    pub unchecked: Vec<Unchecked>,
}

/// A value that the driver refuses, and the lines to change.
#[derive(Debug)]
pub struct Refusal {
    /// The driver's error.
    pub error: ConfigError,
    /// Lines of the task that must go. Empty if the error is not in the task's `config` block.
    pub removed: Vec<String>,
    /// Lines that come in their place.
    pub added: Vec<String>,
}

impl Assessment {
    /// What will happen to the task, once the plugin block allows what it needs.
    pub fn verdict(&self) -> Verdict {
        match (self.refusals.is_empty(), self.differences.is_empty()) {
            (false, _) => Verdict::Change,
            (true, false) => Verdict::Differs,
            (true, true) => Verdict::Unchanged,
        }
    }
}

/// Checks a task.
pub fn assess(task: &DockerTask, nodes: &Nodes) -> Assessment {
    let (mut config, unchecked) = interpolation::resolve(&task.config, &task.variables);
    let mut refusals: Vec<Refusal> = Vec::new();
    let mut permissions = of_group(task, nodes);
    // Some errors are found only when others are gone.
    let spec = loop {
        let Found { spec, errors } = find(&config, &task.nomad, nodes);
        permissions.extend(errors.iter().filter_map(|error| error.permission.clone()));
        let refused = errors
            .iter()
            .find(|error| error.permission.is_none() && refusals.iter().all(|refusal| refusal.error != **error));
        let Some(error) = refused.filter(|_| refusals.len() < MOST_CHANGES) else { break spec };
        let is_better = |config: &Json| {
            let after = find(config, &task.nomad, nodes);
            // A plan is made only if the block has no other error, so its errors may be older than the change.
            let is_first_plan = spec.is_none() && after.spec.is_some();
            let is_known = |error: &ConfigError| errors.contains(error) || error.permission.is_some();
            !after.errors.contains(error) && (is_first_plan || after.errors.iter().all(is_known))
        };
        let change = change::find(&config, &error.option, &is_better);
        let (removed, added) = change.as_ref().map(|change| (change.removed(), change.added())).unwrap_or_default();
        refusals.push(Refusal { error: error.clone(), removed, added });
        if let Some(change) = change {
            config = change.config;
        }
    };
    if nodes.config.driver != DriverName::Docker {
        refusals.push(other_name(nodes.config.driver));
    }
    let PluginConfig { policy, migrate_volumes, .. } = &nodes.config;
    let differences = spec.map(|spec| {
        let subject = Subject { spec: &spec, task: &task.nomad, policy, migrates_volumes: *migrate_volumes };
        difference::of_task(&subject)
    });
    Assessment { differences: differences.unwrap_or_default(), refusals, permissions, unchecked }
}

/// Permissions that Nomad's client checks before it calls the driver.
fn of_group(task: &DockerTask, nodes: &Nodes) -> BTreeSet<Permission> {
    let refused = task.nomad.hosts_entry.is_some() && !nodes.config.group_networks;
    let permission = Permission { option: "network.group_networks", needs: Needs::True };
    refused.then_some(permission).into_iter().collect()
}

/// The refusal of every task by nodes on which the plugin has another name than `docker`.
fn other_name(driver: DriverName) -> Refusal {
    let line = |name: &str| vec![format!("driver = {name:?}")];
    let error = ConfigError {
        option: "driver".to_owned(),
        problem: format!("these nodes have the plugin with the name {:?} only", driver.as_str()),
        remedy: "change the task, or install the plugin with the name `docker` as well".to_owned(),
        permission: None,
    };
    Refusal { error, removed: line("docker"), added: line(driver.as_str()) }
}

/// The errors of a block with both kinds of rules.
struct Found {
    /// The options, if rules that allow everything accept them.
    spec: Option<TaskSpec>,
    errors: Vec<ConfigError>,
}

fn find(config: &Json, task: &NomadTask, nodes: &Nodes) -> Found {
    let bytes = config::from_json(config);
    let mut errors = Vec::new();
    let decode = |policy: &Policy, errors: &mut Vec<ConfigError>| match config::decode_task(&bytes, policy) {
        Ok(spec) => Some(spec),
        Err(refused) => {
            add(errors, refused.errors);
            None
        }
    };
    decode(&nodes.config.policy, &mut errors);
    let spec = decode(&nodes.permissive, &mut errors);
    if let Some(spec) = &spec {
        for policy in [&nodes.config.policy, &nodes.permissive] {
            let image = image();
            let mounted = spec.mounted_images().into_iter().map(|name| (name.to_owned(), image.clone())).collect();
            let context = TaskContext {
                spec,
                task,
                image: &image,
                mounted_images: &mounted,
                node: &nodes.info,
                policy,
                profile: None,
                edits: None,
            };
            if let Err(refused) = plan::plan_task(&context) {
                add(&mut errors, refused.0);
            }
        }
    }
    Found { spec, errors }
}

fn add(errors: &mut Vec<ConfigError>, more: Vec<ConfigError>) {
    for error in more {
        if !errors.contains(&error) {
            errors.push(error);
        }
    }
}

/// An image that has everything that a task may expect of its image.
fn image() -> Image {
    let config = ImageConfig { cmd: Some(vec!["/command".to_owned()]), ..ImageConfig::default() };
    let reference = "image".parse().unwrap_or_else(|error| unreachable!("{error}"));
    Image { reference, digest: String::new(), layers: vec!["/layer".into()], copy_only: false, group: None, config }
}
