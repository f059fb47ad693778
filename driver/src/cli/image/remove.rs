//! `image rm` and `image prune`: the commands that remove images.

use image_store::{ImageUsage, LeaseOwner, PruneReport, Reference, Store, StoreError};
use serde_json::json;

use super::{report, store};
use crate::cli::{failure::Failure, format, output::Output};

/// Removes the images with these names. A failure does not keep the other images from being removed. The last failure
/// decides the exit code.
pub fn remove(store: &Store, names: &[String], output: &Output) -> Result<(), Failure> {
    let mut removed = Vec::new();
    let mut result = Ok(());
    for name in names {
        match remove_one(store, name) {
            Ok(reference) => removed.push(reference.to_string()),
            Err(failure) => {
                if let Err(earlier) = std::mem::replace(&mut result, Err(failure)) {
                    earlier.report();
                }
            }
        }
    }
    if output.json {
        output.value(&json!({ "removed": removed }))?;
    } else {
        removed.iter().try_for_each(|name| output.line(format_args!("removed {name}")))?;
    }
    result
}

fn remove_one(store: &Store, name: &str) -> Result<Reference, Failure> {
    let reference = only_reference(&store::find(store, name)?, name)?;
    match store.remove(&reference) {
        Ok(true) => Ok(reference),
        Ok(false) => Err(store::no_such_image(&reference)),
        Err(StoreError::InUse { owner, .. }) => {
            let images = store::find(store, &reference.to_string())?;
            let mut owners: Vec<LeaseOwner> = images.into_iter().flat_map(|image| image.held_by).collect();
            if owners.is_empty() {
                owners.push(owner);
            }
            Err(Failure::InUse(format!(
                "{reference} is in use by {}; it can be removed once that has been destroyed",
                format::owners(&owners)
            )))
        }
        Err(error) => Err(Failure::of(error)),
    }
}

/// The only reference of these images. A digest does not say which of several names is meant.
fn only_reference(images: &[ImageUsage], name: &str) -> Result<Reference, Failure> {
    let mut references: Vec<&Reference> = images.iter().map(|image| &image.record.reference).collect();
    references.dedup();
    match references[..] {
        [only] => Ok(only.clone()),
        _ => {
            let names: Vec<String> = references.iter().map(ToString::to_string).collect();
            Err(Failure::Failed(format!("{name} has several names: {}; write those to remove", names.join(", "))))
        }
    }
}

/// Says what [`prune`] would remove.
pub fn foresee(store: &Store, output: &Output) -> Result<(), Failure> {
    let PruneReport { images, layers, bytes } = store.prunable().map_err(Failure::of)?;
    let names: Vec<String> = images.iter().map(ToString::to_string).collect();
    if output.json {
        return Ok(output.value(&json!({ "would_remove": names, "layers": layers, "bytes": bytes }))?);
    }
    names.iter().try_for_each(|name| output.line(format_args!("would remove {name}")))?;
    Ok(output.line(format_args!("{layers} layers, {} would be freed", format::size(bytes)))?)
}

/// Removes all images that no task uses.
pub fn prune(store: &Store, output: &Output) -> Result<(), Failure> {
    let pruned = store.prune().map_err(Failure::of)?;
    let kept = store.usage().map_err(Failure::of)?;
    let names: Vec<String> = pruned.images.iter().map(ToString::to_string).collect();
    if output.json {
        let kept: Vec<_> = kept.iter().map(report::image_json).collect();
        let value = json!({ "removed": names, "layers": pruned.layers, "bytes": pruned.bytes, "kept": kept });
        return Ok(output.value(&value)?);
    }
    names.iter().try_for_each(|name| output.line(format_args!("removed {name}")))?;
    for image in &kept {
        output.line(format_args!("kept {}: in use by {}", image.record.reference, format::owners(&image.held_by)))?;
    }
    output.line(format_args!("{} layers, {} freed", pruned.layers, format::size(pruned.bytes)))?;
    Ok(())
}
