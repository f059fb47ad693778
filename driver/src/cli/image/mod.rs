//! The commands of `oci-rs image`.

mod pull;
mod remove;
mod report;
mod store;

use std::{collections::BTreeSet, path::Path};

use image_store::{FsckOptions, LeaseOwner, Reference, Store, fsck};
use serde_json::Value;

use super::{
    arguments::{ImageArguments, ImageCommand},
    failure::Failure,
    output::Output,
    settings::Settings,
};

/// Runs a command.
pub fn run(arguments: &ImageArguments) -> Result<(), Failure> {
    let settings = Settings::read(arguments)?;
    let output = Output { json: arguments.json };
    match &arguments.command {
        ImageCommand::Ls => report::list(&store::open(&settings)?.usage().map_err(Failure::of)?, &output),
        ImageCommand::Inspect { reference } => inspect(&store::open(&settings)?, &parse(reference)?, &output),
        ImageCommand::Pull { reference, unpinned } => pull::pull(&settings, (parse(reference)?, !unpinned), &output),
        ImageCommand::Load { file, reference, unpinned } => {
            pull::load(&settings, file, (parse(reference)?, !unpinned), &output)
        }
        ImageCommand::Rm { references } => {
            let references = references.iter().map(|text| parse(text)).collect::<Result<Vec<_>, _>>()?;
            remove::remove(&store::open(&settings)?, &references, &output)
        }
        ImageCommand::Prune => remove::prune(&store::open(&settings)?, &output),
        ImageCommand::Fsck { repair } => check(&settings, *repair, &output),
    }
}

fn parse(text: &str) -> Result<Reference, Failure> {
    text.parse().map_err(Failure::of)
}

fn inspect(store: &Store, reference: &Reference, output: &Output) -> Result<(), Failure> {
    let mut details = Vec::new();
    for image in store::find(store, reference)? {
        // The store verifies the document's digest. The pull checked that it is JSON.
        let config = store.config(&image.record).map_err(Failure::of)?;
        let config = config.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or(Value::Null);
        details.push((image, config));
    }
    report::details(&details, output)
}

fn check(settings: &Settings, repair: bool, output: &Output) -> Result<(), Failure> {
    store::expect(settings)?;
    let owners = if settings.is_plugins { Some(lease_owners(&settings.config.state_dir)?) } else { None };
    let found = fsck(&settings.config.store().root, &FsckOptions { repair, owners }).map_err(Failure::of)?;
    report::check(&found, repair, output)?;
    if found.is_sound() { Ok(()) } else { Err(Failure::Damage) }
}

/// The possible owners of leases: the containers that have a directory. A task that is just starting has none yet, but
/// its lease is too young to be reported.
fn lease_owners(state_dir: &Path) -> Result<BTreeSet<LeaseOwner>, Failure> {
    if !state_dir.exists() {
        // No task has been started since the machine booted.
        return Ok(BTreeSet::new());
    }
    let containers = runtime::containers(state_dir).map_err(Failure::of)?;
    Ok(containers.into_iter().map(|id| LeaseOwner::Task { container: id.to_string() }).collect())
}
