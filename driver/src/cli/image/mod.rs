//! The commands of `oci-rs image`, and docker's short forms of them.

mod convert;
mod history;
mod interrupt;
pub mod lease;
mod place;
mod prefetch;
mod profile;
mod progress;
mod pull;
mod remove;
mod report;
mod store;
mod tree;

use std::{collections::BTreeSet, path::Path};

use image_store::{FsckOptions, ImageUsage, LeaseOwner, NativeForm, Reference, Store, fsck};
use serde_json::Value;

use super::{
    arguments::{
        ImageArguments, ImageCommand, ListArguments, ListOptions, NodeArguments, PullArguments, PullOptions,
        RemoveArguments,
    },
    failure::Failure,
    output::Output,
    settings::Settings,
};

pub use self::report::image_json;

/// Runs a command.
pub fn run(arguments: &ImageArguments) -> Result<(), Failure> {
    let node = &arguments.node;
    let output = Output { json: node.json };
    let one = || Settings::one(node);
    match &arguments.command {
        ImageCommand::Ls(options) => list(node, options),
        ImageCommand::Inspect { reference } => {
            report::details(&store::details(&store::open(&one()?)?, reference)?, &output)
        }
        ImageCommand::Pull(options) => pull(node, options),
        ImageCommand::Prefetch(options) => prefetch::run(node, options, &output),
        ImageCommand::Load { file, reference, unpinned } => {
            pull::load(&one()?, file, (parse(reference)?, !unpinned), &output)
        }
        ImageCommand::Convert { source, target, image, profile, reorder, uncompressed } => {
            let profile = profile.as_deref().map(profile::read).transpose()?.unwrap_or_default();
            let form = NativeForm { profile, reorder: *reorder, compressed: !uncompressed };
            convert::convert(&Settings::without_node(node)?, (source, target), (image.clone(), form), &output)
        }
        ImageCommand::Push { source, reference, image } => {
            convert::push(&Settings::without_node(node)?, (source, image.clone()), &parse(reference)?, &output)
        }
        ImageCommand::History(arguments) => history::run(&store::open(&one()?)?, arguments, &output),
        ImageCommand::Profile { reference } => profile::run(&store::open(&one()?)?, reference, &output),
        ImageCommand::Tree => tree::run(&usage(node)?, &output),
        ImageCommand::Rm(options) => remove::remove(&store::open(&one()?)?, &options.references, &output),
        ImageCommand::Prune { dry_run: true } => remove::foresee(&store::open(&one()?)?, &output),
        ImageCommand::Prune { dry_run: false } => remove::prune(&store::open(&one()?)?, &output),
        ImageCommand::Fsck { repair } => check(node, *repair, &output),
    }
}

/// Runs `images`.
pub fn run_list(arguments: &ListArguments) -> Result<(), Failure> {
    list(&arguments.node, &arguments.options)
}

/// Runs `pull`.
pub fn run_pull(arguments: &PullArguments) -> Result<(), Failure> {
    pull(&arguments.node, &arguments.options)
}

/// Runs `rmi`.
pub fn run_remove(arguments: &RemoveArguments) -> Result<(), Failure> {
    let store = store::open(&Settings::one(&arguments.node)?)?;
    remove::remove(&store, &arguments.options.references, &Output { json: arguments.node.json })
}

fn list(node: &NodeArguments, options: &ListOptions) -> Result<(), Failure> {
    let output = Output { json: node.json };
    let images = usage(node)?;
    if options.quiet {
        return Ok(images.iter().try_for_each(|image| output.line(image.record.config.as_str()))?);
    }
    report::list(&images, &output)
}

fn pull(node: &NodeArguments, options: &PullOptions) -> Result<(), Failure> {
    let wanted = (parse(&options.reference)?, !options.unpinned);
    pull::pull(&Settings::one(node)?, wanted, &Output { json: node.json })
}

/// The stores of this node's plugins that exist, each once.
pub fn stores(node: &NodeArguments) -> Result<Vec<Store>, Failure> {
    let mut opened = BTreeSet::new();
    let mut stores = Vec::new();
    for settings in Settings::all(node)? {
        if settings.config.store().root.exists() && opened.insert(settings.config.data_dir.clone()) {
            stores.push(store::open(&settings)?);
        }
    }
    Ok(stores)
}

/// The images of all stores of this node. A node without a store is an error: an option may be mistyped.
fn usage(node: &NodeArguments) -> Result<Vec<ImageUsage>, Failure> {
    let stores = stores(node)?;
    if stores.is_empty() {
        Settings::all(node)?.iter().try_for_each(store::expect)?;
    }
    let all = stores.iter().map(|store| store.usage().map_err(Failure::of)).collect::<Result<Vec<_>, _>>()?;
    Ok(all.into_iter().flatten().collect())
}

/// The images with a name as JSON, from all stores of this node.
pub fn described(node: &NodeArguments, name: &str) -> Result<Vec<Value>, Failure> {
    let mut found = Vec::new();
    for store in stores(node)? {
        match store::details(&store, name) {
            Ok(images) => found.extend(images.iter().map(report::detail_json)),
            Err(Failure::NotFound(_)) => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(found)
}

fn parse(text: &str) -> Result<Reference, Failure> {
    text.parse().map_err(Failure::of)
}

fn check(node: &NodeArguments, repair: bool, output: &Output) -> Result<(), Failure> {
    let settings = Settings::one(node)?;
    store::expect(&settings)?;
    // Plugins with one image store may keep their containers in different places.
    let all = Settings::all(node)?;
    let owners = if all.iter().all(|settings| settings.is_plugins) {
        let mut owners = BTreeSet::new();
        for settings in &all {
            owners.extend(lease_owners(&settings.config.state_dir)?);
        }
        Some(owners)
    } else {
        None
    };
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
