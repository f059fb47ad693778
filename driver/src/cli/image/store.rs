//! The image store of the node, and the images in it.

use std::fs;

use image_store::{ImageUsage, Reference, Store};

use crate::{
    cli::{failure::Failure, settings::Settings},
    layers,
};

/// Opens the existing store. It is not created, because `--data-dir` may be mistyped.
pub fn open(settings: &Settings) -> Result<Store, Failure> {
    expect(settings)?;
    Store::open(settings.config.store()).map_err(Failure::of)
}

/// Fails if there is no store.
pub fn expect(settings: &Settings) -> Result<(), Failure> {
    let store = settings.config.store();
    let Err(problem) = fs::symlink_metadata(&store.root) else { return Ok(()) };
    let (directory, hint) = (store.root.display(), "is --data-dir or --config missing?");
    Err(Failure::Failed(format!("no images in {directory}: {problem}; if the plugin has run on this node, {hint}")))
}

/// Opens the store for a command that adds to it, and creates it if it is missing.
pub fn open_or_create(settings: &Settings) -> Result<Store, Failure> {
    let mut config = settings.config.clone();
    if !settings.is_plugins {
        // Without the operator's `gc` block, a pull must not remove other images to free disk space.
        config.retention = None;
    }
    layers::open_store(&config).map_err(Failure::of)
}

/// The images with this name. A pulled image and one from an archive can have the same name.
pub fn find(store: &Store, reference: &Reference) -> Result<Vec<ImageUsage>, Failure> {
    let mut images = store.usage().map_err(Failure::of)?;
    images.retain(|image| image.record.reference == *reference);
    if images.is_empty() { Err(no_such_image(reference)) } else { Ok(images) }
}

/// The failure of a command that names an image that the store does not have.
pub fn no_such_image(reference: &Reference) -> Failure {
    Failure::NoSuchImage(format!("there is no image {reference} here"))
}
