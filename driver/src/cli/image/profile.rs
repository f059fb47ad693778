//! `image profile`: what containers of an image read first on this node, for `image convert --profile`.

use std::{fs, path::Path};

use image_store::{Profile, Store};
use serde_json::json;

use super::store::details;
use crate::cli::{failure::Failure, output::Output};

/// Runs the command.
pub fn run(store: &Store, reference: &str, output: &Output) -> Result<(), Failure> {
    let images = details(store, reference)?;
    let Some((usage, _)) = images.first() else { return Ok(()) };
    let profile = store.profile(&usage.record.layers).map_err(Failure::of)?;
    if profile.layers.is_empty() {
        return Err(Failure::Failed(format!(
            "no reads of {reference} were noted: set `profile` in the block `lazy` of the plugin block, remove the \
             image, and start a task with it (docs/lazy-images.md)"
        )));
    }
    if output.json {
        return Ok(output.value(&json!(profile))?);
    }
    let mut rows = vec![["LAYER", "FILES", "PARTS OF 128 KiB"].map(str::to_owned).to_vec()];
    rows.extend(profile.layers.iter().map(|(layer, files)| {
        let parts: usize = files.iter().flat_map(|file| &file.parts).map(ExactSizeIterator::len).sum();
        vec![layer.clone(), files.len().to_string(), parts.to_string()]
    }));
    Ok(output.table(&rows)?)
}

/// Reads a profile from a file.
pub fn read(path: &Path) -> Result<Profile, Failure> {
    let wrong = |problem: String| Failure::Failed(format!("profile {}: {problem}", path.display()));
    let bytes = fs::read(path).map_err(|error| wrong(error.to_string()))?;
    serde_json::from_slice(&bytes)
        .map_err(|error| wrong(format!("it is not the output of `image profile --json` of this release: {error}")))
}
