//! `image rm` and `image prune`: the commands that remove images.

use image_store::{LeaseOwner, Reference, Store, StoreError};
use serde_json::json;

use super::{report, store};
use crate::cli::{failure::Failure, format, output::Output};

/// Removes the images with these names. A failure does not keep the other images from being removed. The last failure
/// decides the exit code.
pub fn remove(store: &Store, references: &[Reference], output: &Output) -> Result<(), Failure> {
    let mut removed = Vec::new();
    let mut result = Ok(());
    for reference in references {
        match remove_one(store, reference) {
            Ok(()) => removed.push(reference.to_string()),
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

fn remove_one(store: &Store, reference: &Reference) -> Result<(), Failure> {
    match store.remove(reference) {
        Ok(true) => Ok(()),
        Ok(false) => Err(store::no_such_image(reference)),
        Err(StoreError::InUse { owner, .. }) => {
            let images = store::find(store, reference)?;
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
