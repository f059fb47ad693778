//! The local store as pulls see it: images, their documents, and their layers.

use std::{io, path::PathBuf};

use layer::{Digest, Unpacked};

use super::{
    image_record::{self, ImageRecord, LayerRecord, RecordSource, now},
    layer_lock::LayerLock,
    layers::{self, LayerMeta},
    lease_record,
    local::LocalStore,
    staging::Staged,
};
use crate::{
    error::StoreError,
    files::{self, Durability},
    lease::LeaseOwner,
    reference::Reference,
};

impl LocalStore {
    /// The record of a pulled image.
    pub(crate) fn image(&self, reference: &Reference) -> Result<Option<ImageRecord>, StoreError> {
        let record: Option<ImageRecord> = files::read_json(&self.layout.image(reference))?;
        Ok(record.filter(|record| record.reference == *reference))
    }

    /// The records of all names of a reference's repository, except those of tasks' archives.
    pub(crate) fn images_of_repository(&self, reference: &Reference) -> Result<Vec<ImageRecord>, StoreError> {
        let mut records = image_record::images(&self.layout)?;
        records.retain(|record| {
            let other = &record.reference;
            other.domain() == reference.domain()
                && other.repository() == reference.repository()
                && !record.is_of_a_task()
        });
        Ok(records)
    }

    /// The bytes of an image's manifest, verified; `None` if they are missing or damaged.
    pub(crate) fn manifest(&self, image: &ImageRecord) -> Result<Option<Vec<u8>>, StoreError> {
        read_document(self.layout.manifest(&image.manifest), &image.manifest)
    }

    /// The bytes of an image's config, verified; `None` if they are missing or damaged.
    pub(crate) fn config(&self, image: &ImageRecord) -> Result<Option<Vec<u8>>, StoreError> {
        read_document(self.layout.config(&image.config), &image.config)
    }

    /// Saves the record and the documents of an image; all its layers must be on disk. The exclusive lock keeps the
    /// records that other processes saved meanwhile from being lost.
    pub(crate) fn save(
        &self,
        record: &ImageRecord,
        manifest: &[u8],
        config: &[u8],
        source: RecordSource,
    ) -> Result<(), StoreError> {
        let path = record.path(&self.layout);
        let _exclusive = self.layout.lock_exclusive()?;
        let on_disk = self.image(&record.reference)?;
        let Some(record) = record.over(on_disk, source, now()) else { return Ok(()) };
        // The manifest of an archive is not on disk.
        if !record.loaded {
            files::write(&self.layout.manifest(&record.manifest), manifest, Durability::Later)?;
        }
        failpoint::at("save-before-config");
        files::write(&self.layout.config(&record.config), config, Durability::Later)?;
        failpoint::at("save-before-record");
        files::write_json(&path, &record, Durability::Later)
    }

    /// Saves the record of an image from a task's archive. Its documents stay in the archive: the next load reads them
    /// there.
    pub(crate) fn save_loaded(&self, record: &ImageRecord) -> Result<(), StoreError> {
        let _adding = self.layout.lock_shared()?;
        files::write_json(&record.path(&self.layout), record, Durability::Later)
    }

    /// Saves the record of an image from the administrator's archive. It replaces every record of its name.
    pub(crate) fn save_pinned(&self, record: &ImageRecord, config: &[u8]) -> Result<(), StoreError> {
        let _exclusive = self.layout.lock_exclusive()?;
        files::write(&self.layout.config(&record.config), config, Durability::Later)?;
        failpoint::at("save-before-record");
        files::write_json(&record.path(&self.layout), record, Durability::Later)
    }

    /// Whether a layer is on disk and may be used, for any blob.
    pub(crate) fn has_layer(&self, diff_id: &Digest) -> Result<bool, StoreError> {
        Ok(layers::usable(&self.layout, diff_id)?.is_some())
    }

    /// Whether a layer is on disk and may be used for this blob.
    pub(crate) fn has_layer_for_blob(&self, layer: &LayerRecord) -> Result<bool, StoreError> {
        let meta = layers::usable(&self.layout, &layer.diff_id)?;
        Ok(meta.is_some_and(|meta| meta.blobs.contains(&layer.blob)))
    }

    /// Whether all layers of an image are on disk and may be used.
    pub(crate) fn is_complete(&self, image: &ImageRecord) -> Result<bool, StoreError> {
        for layer in &image.layers {
            if !self.has_layer_for_blob(layer)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits until no other task of any process makes this layer. Dropping the future stops waiting.
    pub(crate) async fn lock_layer(&self, diff_id: &Digest) -> Result<LayerLock, StoreError> {
        self.layer_locks.lock(&self.layout, diff_id).await
    }

    /// The same if it needs no waiting.
    pub(crate) async fn try_lock_layer(&self, diff_id: &Digest) -> Result<Option<LayerLock>, StoreError> {
        self.layer_locks.try_lock(&self.layout, diff_id).await
    }

    /// The record of a layer that is mounted before it is complete.
    pub(crate) fn layer_meta(layer: Unpacked) -> Result<LayerMeta, StoreError> {
        LayerMeta::new(&layer)
    }

    /// The owners of the leases that have a layer.
    pub(crate) fn owners_of(&self, diff_id: &Digest) -> Result<Vec<LeaseOwner>, StoreError> {
        let leases = lease_record::leases(&self.layout)?;
        Ok(leases.into_iter().filter(|lease| lease.layers.contains(diff_id)).map(|lease| lease.owner).collect())
    }

    /// Moves a verified layer to its place.
    pub(crate) fn commit_layer(&self, staged: &Staged, unpacked: &Unpacked) -> Result<(), StoreError> {
        staged.remove_unused_target(unpacked)?;
        layers::commit(&self.layout, staged.path(), &LayerMeta::new(unpacked)?)
    }
}

/// A document from disk; `None` if it is missing or does not hash to its digest.
fn read_document(path: PathBuf, digest: &Digest) -> Result<Option<Vec<u8>>, StoreError> {
    match std::fs::read(&path) {
        Ok(bytes) => Ok(Some(bytes).filter(|bytes| digest.matches(bytes))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StoreError::io("reading", path)(error)),
    }
}
