//! `image history`: how an image was built.

use image_store::Store;
use serde_json::{Value, json};

use super::store::details;
use crate::cli::{
    arguments::HistoryArguments,
    failure::Failure,
    format,
    output::{Output, shorten},
};

/// The widest command in a table, unless it is to be whole.
const WIDTH: usize = 60;

/// A step of a build.
#[derive(Debug, PartialEq, Eq)]
struct Step {
    created: String,
    command: String,
    comment: String,
    /// The layer that it added: digest, and unpacked bytes if it is on disk.
    layer: Option<(String, Option<u64>)>,
}

/// Runs the command.
pub fn run(store: &Store, arguments: &HistoryArguments, output: &Output) -> Result<(), Failure> {
    let images = details(store, &arguments.reference)?;
    let Some((usage, config)) = images.first() else { return Ok(()) };
    let layers = usage.record.layers.iter().zip(&usage.layer_bytes);
    let layers: Vec<_> = layers.map(|(layer, bytes)| (layer.diff_id.to_string(), *bytes)).collect();
    let steps = steps(config, &layers);
    if output.json {
        let step = |step: &Step| {
            json!({
                "created": step.created, "created_by": step.command, "comment": step.comment,
                "layer": step.layer.as_ref().map(|(digest, _)| digest),
                "bytes": step.layer.as_ref().map(|(_, bytes)| bytes),
            })
        };
        return Ok(output.value(&steps.iter().map(step).collect())?);
    }
    let mut rows = vec![["LAYER", "CREATED", "SIZE", "CREATED BY"].map(str::to_owned).to_vec()];
    // The newest step comes first, as in docker's output.
    rows.extend(steps.iter().rev().map(|step| {
        let (layer, size) = match &step.layer {
            Some((digest, bytes)) => {
                (format::short_digest(digest), bytes.map_or_else(|| "missing".to_owned(), format::size))
            }
            None => ("-", "0 B".to_owned()),
        };
        let text = if step.command.is_empty() { &step.comment } else { &step.command };
        let command = if arguments.no_trunc { text.clone() } else { shorten(text, WIDTH) };
        vec![layer.to_owned(), step.created.clone(), size, command]
    }));
    if arguments.no_trunc {
        output.table(&rows)?
    } else {
        output.fitted(&rows, &[3])?
    }
    Ok(())
}

/// The steps of an image's configuration, the oldest first. Layers without a step have one without a command.
fn steps(config: &Value, layers: &[(String, Option<u64>)]) -> Vec<Step> {
    let mut left = layers.iter();
    let mut steps = Vec::new();
    for entry in config["history"].as_array().into_iter().flatten() {
        let text = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
        let is_empty = entry["empty_layer"].as_bool().unwrap_or(false);
        let layer = if is_empty { None } else { left.next().cloned() };
        steps.push(Step { created: text("created"), command: text("created_by"), comment: text("comment"), layer });
    }
    steps.extend(left.map(|layer| Step {
        created: String::new(),
        command: String::new(),
        comment: String::new(),
        layer: Some(layer.clone()),
    }));
    steps
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::steps;

    #[test]
    fn each_layer_belongs_to_its_step() {
        let layers = [("a", Some(1)), ("b", None), ("c", Some(3))].map(|(digest, bytes)| (digest.to_owned(), bytes));
        let config = json!({"history": [
            {"created_by": "ADD"}, {"created_by": "CMD", "empty_layer": true}, {"created_by": "RUN"},
        ]});
        let found = steps(&config, &layers);
        let found: Vec<_> = found
            .iter()
            .map(|step| (step.command.as_str(), step.layer.as_ref().map(|(name, _)| name.as_str())))
            .collect();
        assert_eq!(found, [("ADD", Some("a")), ("CMD", None), ("RUN", Some("b")), ("", Some("c"))]);
        assert_eq!(steps(&json!({}), &layers).len(), 3);
        assert_eq!(steps(&config, &[]).len(), 3, "a hostile image has more steps than layers");
    }
}
