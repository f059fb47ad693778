//! Reading documents from JSON and YAML.

use std::path::Path;

use crate::{
    check,
    document::{Spec, SpecError},
};

/// The form of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

impl Format {
    /// The form that the name of a file tells. `None`: the file is no spec.
    pub fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "json" => Some(Self::Json),
            "yaml" => Some(Self::Yaml),
            _ => None,
        }
    }
}

impl Spec {
    /// Reads a document and checks it.
    pub fn parse(format: Format, text: &[u8]) -> Result<Self, SpecError> {
        let spec: Self = match format {
            Format::Json => serde_json::from_slice(text).map_err(|error| SpecError(error.to_string()))?,
            Format::Yaml => yaml_serde::from_slice(text).map_err(|error| SpecError(error.to_string()))?,
        };
        check::check(&spec)?;
        Ok(spec)
    }
}

#[cfg(test)]
mod tests;
