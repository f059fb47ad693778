//! The devices that the plugin offers now, and after each change.

use std::{collections::BTreeSet, path::Path};

use cdi::{DeviceNode, Entry, Registry};

use super::{
    facts::{self, KernelFiles},
    groups::{self, Group},
    watch::DeviceWatch,
};
use crate::{blocking::blocking, config::DevicePluginConfig, error::TaskError};

fn kernel() -> KernelFiles<'static> {
    KernelFiles { sysfs: Path::new("/sys"), proc: Path::new("/proc") }
}

/// Reads the offered groups now. Blocks on the file system.
pub fn current(config: &DevicePluginConfig) -> Vec<Group> {
    judge(&cdi::load(&config.spec_dirs), config)
}

/// The groups of these specs on this node.
fn judge(registry: &Registry, config: &DevicePluginConfig) -> Vec<Group> {
    let devices = groups::offered(registry, config).into_iter();
    let devices: Vec<_> = devices.map(|(name, entry)| (name, entry, facts::of(nodes(&entry), kernel()))).collect();
    groups::decide(&devices, config)
}

/// The nodes of a device, those that only it has first.
fn nodes<'a>(entry: &Entry<'a>) -> impl Iterator<Item = &'a DeviceNode> + Clone + use<'a> {
    entry.device.container_edits.device_nodes.iter().chain(&entry.spec.container_edits.device_nodes)
}

/// The offered groups, as they change.
pub struct Offer {
    config: DevicePluginConfig,
    /// `None`: changes are not noticed, because the kernel has no inotify instance left.
    watch: Option<DeviceWatch>,
    sent: Option<Vec<Group>>,
    /// The problems of specs that the log has.
    logged: BTreeSet<String>,
}

impl Offer {
    /// Reads nothing yet. Needs an async runtime.
    pub fn new(config: DevicePluginConfig) -> Self {
        let watch = DeviceWatch::new().inspect_err(not_followed).ok();
        Self { config, watch, sent: None, logged: BTreeSet::new() }
    }

    /// The groups: at once, then after each change of them.
    pub async fn next(mut self) -> Result<(Self, Vec<Group>), TaskError> {
        loop {
            if self.sent.is_some() {
                self.changed().await;
            }
            let (offer, groups) = blocking(move || Ok(self.read())).await?;
            self = offer;
            if self.sent.as_ref() != Some(&groups) {
                self.sent = Some(groups.clone());
                return Ok((self, groups));
            }
        }
    }

    /// Waits for a change of specs or nodes.
    async fn changed(&mut self) {
        if let Some(watch) = &self.watch {
            match watch.changed().await {
                Ok(()) => return,
                Err(error) => not_followed(&error),
            }
            self.watch = None;
        }
        std::future::pending().await
    }

    /// Reads the groups, and follows everything that decides them.
    fn read(mut self) -> (Self, Vec<Group>) {
        let specs = self.watch.as_mut().map_or(Ok(()), |watch| watch.follow_specs(&self.config.spec_dirs));
        let registry = cdi::load(&self.config.spec_dirs);
        let paths: BTreeSet<&Path> = groups::offered(&registry, &self.config)
            .iter()
            .flat_map(|(_, entry)| nodes(entry))
            .map(|node| Path::new(node.path_on_node()))
            .collect();
        let nodes = self.watch.as_mut().map_or(Ok(()), |watch| watch.follow_nodes(paths.into_iter()));
        if let Err(error) = specs.and(nodes) {
            not_followed(&error);
        }
        let problems: BTreeSet<String> = registry.problems().collect();
        for problem in problems.difference(&self.logged) {
            tracing::warn!(problem, "devices of a spec are not offered");
        }
        self.logged = problems;
        let groups = judge(&registry, &self.config);
        (self, groups)
    }
}

fn not_followed(error: &std::io::Error) {
    tracing::error!(
        %error,
        "changes of devices are not noticed until the agent starts again: raise fs.inotify.max_user_instances or \
         fs.inotify.max_user_watches"
    );
}
