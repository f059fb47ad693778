//! A resolved name: the record of the image with its documents.

use bytes::Bytes;

use crate::{
    error::StoreError,
    manifest::{self, ImageConfig},
    reference::Reference,
    store::{ImageRecord, LocalStore},
};

/// The meaning of a name.
#[derive(Debug, Clone)]
pub(super) struct Resolved {
    pub(super) record: ImageRecord,
    /// Empty if the image came from an archive.
    pub(super) manifest: Bytes,
    pub(super) config: Bytes,
    /// The parsed part of `config`.
    pub(super) run: ImageConfig,
}

impl Resolved {
    /// The meaning of a name on disk; `None` if the record or a document is missing or damaged.
    pub(super) fn recorded(local: &LocalStore, reference: &Reference) -> Result<Option<Self>, StoreError> {
        let Some(record) = local.image(reference)? else { return Ok(None) };
        let manifest = if record.loaded { Some(Vec::new()) } else { local.manifest(&record)? };
        let (Some(manifest), Some(config)) = (manifest, local.config(&record)?) else { return Ok(None) };
        let Ok(document) = manifest::parse_config("config", &config) else { return Ok(None) };
        Ok(Some(Self { record, manifest: manifest.into(), config: config.into(), run: document.config }))
    }
}

/// How the meaning of a name became known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResolutionSource {
    /// It was recorded, and the record needs no change.
    Record,
    /// It was recorded, but the access of this caller was not.
    NewAccess,
    /// The registry was asked.
    Registry,
}
