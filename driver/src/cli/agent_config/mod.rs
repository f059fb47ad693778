//! The plugin block as it stands in files: in the configuration of an agent (HCL, JSON, or a directory with both), or
//! alone.
//!
//! Always holds:
//!
//! - A file that an agent accepts is accepted here, with the same values for the plugin. One corner differs: a key
//!   without a value at the end of the file is an error here, and unset for the agent.
//! - An error names the file, and in HCL the line and the option. It never contains a value that may be a secret.

mod hcl;
mod scanner;
#[cfg(test)]
mod tests;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde_json::Value as Json;

use self::hcl::Document;
use super::failure::Failure;
use crate::{
    config::{self, ConfigErrors, PluginConfig},
    name::DriverName,
};

/// Reads a file or a directory. In an agent's configuration it takes the block of the first of these names. A file that
/// is the block itself has the first name.
pub fn read(path: &Path, names: &[DriverName]) -> Result<PluginConfig, Failure> {
    let failed = |path: &Path, problem: String| Failure::Failed(format!("{}: {problem}", path.display()));
    let is_directory = fs::metadata(path).map_err(|error| failed(path, error.to_string()))?.is_dir();
    let paths = if is_directory {
        files(path).map_err(|error| failed(path, error.to_string()))?
    } else {
        vec![path.to_owned()]
    };
    let mut sources = Vec::new();
    for path in paths {
        let text = fs::read_to_string(&path).map_err(|error| failed(&path, error.to_string()))?;
        sources.push(Source { document: parse(&text).map_err(|problem| failed(&path, problem))?, path });
    }
    let single = sources.first().filter(|source| !is_directory && !source.is_agents());
    let alone = single.and_then(|source| Some((source, *names.first()?, &source.document.value)));
    let Some((source, driver, block)) = alone.or_else(|| choose(&sources, names)) else {
        return Err(failed(path, "holds no plugin \"oci-rs\" or \"docker\" block with a config".to_owned()));
    };
    config::decode_plugin(&config::from_json(block), driver)
        .map_err(|errors| Failure::Failed(format!("{}: {}", source.path.display(), source.located(driver, errors))))
}

/// The block of the first of these names that is in a file. As in an agent, a later file replaces the whole block of an
/// earlier one, unless the later block is empty.
fn choose<'a>(sources: &'a [Source], names: &[DriverName]) -> Option<(&'a Source, DriverName, &'a Json)> {
    names.iter().find_map(|name| {
        let blocks = || sources.iter().rev().filter_map(|source| Some((source, *name, source.block(*name)?)));
        blocks().find(|(_, _, block)| !is_empty(block)).or_else(|| blocks().next())
    })
}

/// The block with this name. A repeated block stands in a list; JSON may have a list of one.
fn inside<'a>(json: &'a Json, name: &str) -> Option<&'a Json> {
    match json {
        Json::Object(fields) => fields.get(name),
        Json::Array(items) => items.iter().find_map(|item| inside(item, name)),
        _ => None,
    }
}

fn is_empty(block: &Json) -> bool {
    match block {
        Json::Object(fields) => fields.is_empty(),
        Json::Array(items) => items.iter().all(is_empty),
        other => other.is_null(),
    }
}

fn parse(text: &str) -> Result<Document, String> {
    if text.trim_start().starts_with('{') {
        let value: Json = serde_json::from_str(text).map_err(|error| format!("is not JSON: {error}"))?;
        return Ok(Document::from(value));
    }
    hcl::parse(text).map_err(|error| format!("line {}: {}", error.line, error.problem))
}

/// The files of a directory that an agent reads, in its order.
fn files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let is_read = path.file_name().and_then(|name| name.to_str()).is_some_and(is_read);
        if is_read && !path.is_dir() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Whether an agent reads a file with this name. Editors leave the others.
fn is_read(name: &str) -> bool {
    (name.ends_with(".hcl") || name.ends_with(".json")) && !name.starts_with(".#")
}

/// A file that was read.
struct Source {
    path: PathBuf,
    document: Document,
}

impl Source {
    /// The block of this name.
    fn block(&self, name: DriverName) -> Option<&Json> {
        inside(inside(inside(&self.document.value, "plugin")?, name.as_str())?, "config")
    }

    /// Whether this is the configuration of an agent, and not a block alone.
    fn is_agents(&self) -> bool {
        inside(&self.document.value, "plugin").is_some()
    }

    /// The errors of the block, with their lines.
    fn located(&self, driver: DriverName, mut errors: ConfigErrors) -> String {
        let names = ["plugin", driver.as_str()].map(str::to_owned);
        let block = if self.is_agents() { format!("{}.config.", hcl::path_of("", &names)) } else { String::new() };
        for error in &mut errors.errors {
            if let Some(line) = self.document.line(&format!("{block}{}", error.option)) {
                error.option = format!("line {line}: {}", error.option);
            }
        }
        let hint = if self.is_agents() { "" } else { "; the file has no `plugin` block, so it was read as one" };
        format!("{errors}{hint}")
    }
}
