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
        let record = local.image(reference)?;
        record.map_or(Ok(None), |record| Self::of_record(local, record))
    }

    /// The meaning of a name with a digest by the record of another name of the same repository: the digest says what
    /// the content is.
    pub(super) fn recorded_under_another_name(
        local: &LocalStore,
        reference: &Reference,
    ) -> Result<Option<(Self, ResolutionSource)>, StoreError> {
        let Some(digest) = reference.digest() else { return Ok(None) };
        for record in local.images_of_repository(reference)? {
            if record.resolved != *digest && record.manifest != *digest {
                continue;
            }
            // An archive of the administrator has one record. A pulled image gets a record of its own for this name,
            // which is not the name that the administrator pinned.
            let source = if record.loaded { ResolutionSource::Record } else { ResolutionSource::NewRecord };
            let record = ImageRecord { reference: reference.clone(), pinned: record.loaded, ..record };
            if let Some(resolved) = Self::of_record(local, record)? {
                return Ok(Some((resolved, source)));
            }
        }
        Ok(None)
    }

    fn of_record(local: &LocalStore, record: ImageRecord) -> Result<Option<Self>, StoreError> {
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
    /// It was recorded, but under another name, or the access of this caller was not.
    NewRecord,
    /// The registry was asked.
    Registry,
}
