//! An image of the node's store for as long as this process needs it. The volume plugin fills volumes with such images.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use image_store::{Image, LeaseOwner, PullRequest, Reference, Silent, Store};

use super::{
    interrupt::{interrupted, run},
    store::open_or_create,
};
use crate::cli::{arguments::NodeArguments, failure::Failure, settings::Settings};

/// An image that stays on disk until the value is dropped. The lease of a killed process has no effect, and the next
/// process that leases an image in this way removes it.
pub struct LeasedImage {
    /// The image.
    pub image: Image,
    store: Store,
    owner: LeaseOwner,
}

impl LeasedImage {
    /// Pulls an image as a task with this image would, unless the node has it: with the operator's registries,
    /// credentials, timeouts and limits, and only if `verify_access` gives it to a caller without credentials. Without
    /// the operator's configuration it fails. `config` is its file, if it is not to be found as commands find it. Of
    /// several plugins, the store of `oci-rs` is used.
    pub fn acquire(config: Option<PathBuf>, reference: &Reference, limit: Duration) -> Result<Self, Failure> {
        let settings = of_operator(Settings::all(&NodeArguments { config, ..NodeArguments::default() })?)?;
        let (store, owner) = (open_or_create(&settings)?, lease_owner());
        // A killed predecessor has left its lease, and no command is sure to follow.
        store.sweep().map_err(Failure::of)?;
        let request = PullRequest {
            timeout: Some(limit.min(settings.config.image_pull_timeout)),
            idle_timeout: settings.config.pull_activity_timeout,
            ..PullRequest::new(reference.clone())
        };
        let image = run(store.acquire_unless(request, &owner, Arc::new(Silent), interrupted()))?;
        let leased = Self { image, store, owner };
        leased.store.sync().map_err(Failure::of)?;
        Ok(leased)
    }
}

impl Drop for LeasedImage {
    fn drop(&mut self) {
        if let Err(error) = self.store.release(&self.owner) {
            tracing::warn!(%error, "the lease of an image was not released");
        }
    }
}

/// The settings of the first plugin. If several plugins share its images, an image is given only to callers to which
/// each of them gives it.
fn of_operator(mut all: Vec<Settings>) -> Result<Settings, Failure> {
    let verify_access =
        all.iter().any(|other| other.config.data_dir == all[0].config.data_dir && other.config.verify_access);
    let mut settings = all.swap_remove(0);
    settings.config.verify_access = verify_access;
    if let Some(problem) = &settings.unknown_config {
        return Err(Failure::Failed(format!(
            "this build does not understand the configuration of the driver's plugin ({problem}): install the same \
             oci-rs as the driver and as the volume plugin"
        )));
    }
    if !settings.is_plugins {
        let problem = "the operator's configuration is not found: start the driver's plugin on this node, or copy the \
                       agent's configuration to oci-rs-volume.hcl beside the volume plugin";
        return Err(Failure::Failed(problem.to_owned()));
    }
    Ok(settings)
}

/// This process as the owner of several leases.
pub fn lease_owners(number: usize) -> Vec<LeaseOwner> {
    let LeaseOwner::Operator { process, started } = lease_owner() else { return Vec::new() };
    (0..number as u128).map(|index| LeaseOwner::Operator { process, started: started + index }).collect()
}

/// This process as the owner of a lease.
pub fn lease_owner() -> LeaseOwner {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    LeaseOwner::Operator { process: std::process::id(), started: now.as_nanos() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PluginConfig;

    fn settings(data_dir: &str, verify_access: bool) -> Settings {
        let config = PluginConfig { data_dir: data_dir.into(), verify_access, ..PluginConfig::default() };
        Settings { config, is_plugins: true, unknown_config: None, only: None }
    }

    #[test]
    fn the_stricter_plugin_of_a_store_decides() {
        for (all, verifies) in [
            (vec![settings("/a", true)], true),
            (vec![settings("/a", false)], false),
            (vec![settings("/a", false), settings("/a", true)], true),
            (vec![settings("/a", false), settings("/b", true)], false),
        ] {
            let chosen = of_operator(all).ok().unwrap();
            assert_eq!((chosen.config.verify_access, chosen.config.data_dir), (verifies, "/a".into()));
        }
    }

    #[test]
    fn without_the_configuration_of_the_operator_there_is_no_image() {
        let unknown =
            Settings { is_plugins: false, unknown_config: Some("no option x".to_owned()), ..settings("/a", true) };
        let missing = Settings { is_plugins: false, ..settings("/a", true) };
        for (settings, part) in [(unknown, "(no option x): install the same"), (missing, "oci-rs-volume.hcl beside")] {
            let failure = of_operator(vec![settings]).err().unwrap();
            assert!(failure.reason().contains(part), "{}", failure.reason());
        }
    }
}
