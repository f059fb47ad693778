//! The results of commands, as text or as JSON.

use std::{collections::BTreeSet, time::SystemTime};

use image_store::{Access, Finding, FsckReport, ImageUsage, LeaseOwner, Outcome, Severity};
use serde_json::{Value, json};

use crate::cli::{failure::Failure, format, output::Output};

/// An image as JSON.
pub fn image_json(image: &ImageUsage) -> Value {
    let record = &image.record;
    json!({
        "reference": record.reference.to_string(),
        "digest": record.manifest.to_string(),
        "resolved": record.resolved.to_string(),
        "id": record.config.to_string(),
        "loaded": record.loaded,
        "pinned": record.pinned,
        "private": record.access != Access::Anyone,
        "pulled_at": format::rfc3339(format::since_epoch(record.pulled_at)),
        "last_used": format::rfc3339(image.last_used),
        "layers": record.layers,
        "compressed_bytes": record.size(),
        "unpacked_bytes": image.bytes,
        "missing_layers": image.missing,
        "used_by": image.held_by,
    })
}

/// The output of `image ls`.
pub fn list(images: &[ImageUsage], output: &Output) -> Result<(), Failure> {
    if output.json {
        return Ok(output.value(&images.iter().map(image_json).collect())?);
    }
    let now = SystemTime::now();
    let mut rows = vec![["IMAGE", "DIGEST", "SIZE", "LAST USED", "USED BY"].map(str::to_owned).to_vec()];
    rows.extend(images.iter().map(|image| {
        let record = &image.record;
        let name = if record.loaded { format!("{} (archive)", record.reference) } else { record.reference.to_string() };
        let users: BTreeSet<LeaseOwner> = image.held_by.iter().map(LeaseOwner::principal).collect();
        let used_by = match users.len() {
            0 if !image.missing.is_empty() => "incomplete: the next pull completes it".to_owned(),
            0 if record.pinned => "- (pinned)".to_owned(),
            0 => "-".to_owned(),
            1 => "1 task".to_owned(),
            count => format!("{count} tasks"),
        };
        let digest = format::short_digest(record.manifest.as_str()).to_owned();
        vec![name, digest, format::size(image.bytes), format::ago(image.last_used, now), used_by]
    }));
    Ok(output.fitted(&rows, &[0])?)
}

/// An image and its configuration document as JSON.
pub fn detail_json((usage, config): &(ImageUsage, Value)) -> Value {
    let mut value = image_json(usage);
    value["config"] = config.clone();
    value
}

/// The output of `image inspect`.
pub fn details(images: &[(ImageUsage, Value)], output: &Output) -> Result<(), Failure> {
    if output.json {
        return Ok(output.value(&images.iter().map(detail_json).collect())?);
    }
    for (usage, config) in images {
        let rows = detail_rows(usage, config);
        let rows: Vec<_> = rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect();
        output.table(&rows)?;
    }
    Ok(())
}

/// Name and value of each line about an image. `config` is the image's configuration document.
fn detail_rows(usage: &ImageUsage, config: &Value) -> Vec<(&'static str, String)> {
    let record = &usage.record;
    let missing = if usage.missing.is_empty() { String::new() } else { format!(", {} missing", usage.missing.len()) };
    let access = match record.access {
        Access::Anyone => "every task",
        _ => "tasks whose credentials the registry accepts",
    };
    let mut rows = vec![
        ("image", record.reference.to_string()),
        ("from", (if record.loaded { "an archive" } else { "its registry" }).to_owned()),
        ("for", access.to_owned()),
        ("kept", (if record.pinned { "until it is removed by hand" } else { "as long as gc says" }).to_owned()),
        ("digest", record.manifest.to_string()),
        ("index", record.resolved.to_string()),
        ("id", record.config.to_string()),
        ("pulled", format::rfc3339(format::since_epoch(record.pulled_at))),
        ("last used", format::rfc3339(usage.last_used)),
        ("size", format!("{} compressed, {} unpacked", format::size(record.size()), format::size(usage.bytes))),
        ("layers", format!("{}{missing}", record.layers.len())),
    ];
    rows.extend(record.layers.iter().map(|layer| ("", layer.diff_id.to_string())));
    rows.extend(usage.held_by.iter().map(|owner| ("used by", format::owner(owner))));
    let run = &config["config"];
    for (name, key) in [("entrypoint", "Entrypoint"), ("command", "Cmd"), ("user", "User"), ("work_dir", "WorkingDir")]
    {
        if run.get(key).is_some_and(|value| !value.is_null() && value != "") {
            rows.push((name, run[key].to_string()));
        }
    }
    rows
}

/// The output of `image fsck`.
pub fn check(report: &FsckReport, repair: bool, output: &Output) -> Result<(), Failure> {
    if output.json {
        let mut value = serde_json::to_value(report).map_err(Failure::of)?;
        value["sound"] = report.is_sound().into();
        return Ok(output.value(&value)?);
    }
    for finding in &report.findings {
        output.line(finding_line(finding))?;
    }
    let count = |severity| report.findings.iter().filter(|finding| finding.severity == severity).count();
    let (damage, leftovers, foreign) = (count(Severity::Damage), count(Severity::Leftover), count(Severity::Foreign));
    output.line(format_args!(
        "{} images, {} layers: {damage} damaged, {leftovers} left over, {foreign} not ours",
        report.images, report.layers
    ))?;
    let repairable = |finding: &Finding| matches!(finding.outcome, Outcome::Repairable(_));
    if !repair && report.findings.iter().any(repairable) {
        output.line("--repair mends what can be mended")?;
    }
    Ok(())
}

/// A finding, and the action that was or can be taken.
fn finding_line(finding: &Finding) -> String {
    let severity = match finding.severity {
        Severity::Damage => "damage",
        Severity::Leftover => "left over",
        Severity::Foreign => "not ours",
    };
    let mut text = format!("{severity}: {} {}", finding.path.display(), finding.problem);
    if !finding.images.is_empty() {
        let names: Vec<String> = finding.images.iter().map(ToString::to_string).collect();
        text.push_str(&format!("; image {}", names.join(", ")));
    }
    if !finding.held_by.is_empty() {
        text.push_str(&format!("; in use by {}", format::owners(&finding.held_by)));
    }
    match &finding.outcome {
        Outcome::Repaired(what) => text.push_str(&format!("\n  done: {what}")),
        Outcome::Repairable(what) => text.push_str(&format!("\n  --repair: {what}")),
        Outcome::Manual(what) => text.push_str(&format!("\n  to do: {what}")),
        Outcome::Failed(error) => text.push_str(&format!("\n  could not be mended: {error}")),
    }
    text
}
