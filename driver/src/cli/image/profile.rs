//! `image profile`: what containers of an image read first on this node, for `image convert --profile`.

use std::{collections::BTreeMap, fs, path::Path};

use image_store::{Profile, Store};
use serde_json::{Value, json};

use super::store::details;
use crate::cli::{failure::Failure, format, output::Output};

/// Runs the command.
pub fn run(store: &Store, reference: &str, output: &Output) -> Result<(), Failure> {
    let images = details(store, reference)?;
    let Some((usage, _)) = images.first() else { return Ok(()) };
    let mut profile = BTreeMap::new();
    for layer in usage.record.layers.iter().filter(|layer| layer.native.is_some()) {
        if let Some(chunks) = store.first_reads(&layer.diff_id).map_err(Failure::of)? {
            profile.insert(layer.diff_id.to_string(), chunks);
        }
    }
    if profile.is_empty() {
        return Err(Failure::Failed(format!(
            "no reads of {reference} were noted: set `profile` in the block `lazy` of the plugin block, remove the \
             image, and start a task with it (docs/lazy-images.md)"
        )));
    }
    if output.json {
        return Ok(output.value(&json!(profile))?);
    }
    let mut rows = vec![vec!["LAYER".to_owned(), "CHUNKS".to_owned()]];
    rows.extend(profile.iter().map(|(layer, chunks)| vec![format::short_digest(layer).to_owned(), chunks.clone()]));
    Ok(output.table(&rows)?)
}

/// Reads a profile from a file.
pub fn read(path: &Path) -> Result<Profile, Failure> {
    let wrong = |problem: String| Failure::Failed(format!("profile {}: {problem}", path.display()));
    let bytes = fs::read(path).map_err(|error| wrong(error.to_string()))?;
    let value: Value = serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
    let entries =
        value.as_object().ok_or_else(|| wrong("it is not the output of `image profile --json`".to_owned()))?;
    let entry = |(layer, chunks): (&String, &Value)| Some((layer.clone(), chunks.as_str()?.to_owned()));
    let profile: Option<Profile> = entries.iter().map(entry).collect();
    profile.ok_or_else(|| wrong("it is not the output of `image profile --json`".to_owned()))
}
