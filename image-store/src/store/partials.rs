//! The local store as the service of partial layers sees it.

use std::{
    fs::{self, File},
    io::{self, Read},
    ops::Range,
    path::{Path, PathBuf},
};

use layer::Limits;

use super::{
    image_record::LayerRecord,
    layers::{self, LayerMeta},
    lease_record,
    local::LocalStore,
    partial::{self, EVENTS, Partial, SOURCE, STATE, Source},
    staging::Staged,
    trash,
};
use crate::{
    error::StoreError,
    files::{self, Durability},
    lease::LeaseOwner,
    profile::ProfiledFile,
    reference::Reference,
};

impl LocalStore {
    /// The file of events. One process at a time uses it.
    pub(crate) fn layer_events(&self) -> PathBuf {
        self.layout.directory("partial").join(EVENTS)
    }

    /// The partial layers of this store that are not complete.
    pub(crate) fn partials(&self) -> Result<Vec<Partial>, StoreError> {
        Ok(partial::all(&self.layout)?
            .into_iter()
            .filter(|partial| partial::is_incomplete(&partial.directory))
            .collect())
    }

    /// The directories of the layers that were partial and are complete, and that tasks may still use.
    pub(crate) fn completed(&self) -> Result<Vec<PathBuf>, StoreError> {
        let directories = partial::all(&self.layout)?.into_iter().map(|partial| partial.directory);
        Ok(directories.filter(|directory| !partial::is_incomplete(directory)).collect())
    }

    /// Whether there is a partial layer in a directory, which is not complete.
    pub(crate) fn is_incomplete(directory: &Path) -> bool {
        partial::is_incomplete(directory)
    }

    /// Whether a container has a lease of a layer that is not complete.
    pub(crate) fn uses_incomplete_layers(&self, container: &str) -> Result<bool, StoreError> {
        let incomplete = self.partials()?;
        if incomplete.is_empty() {
            return Ok(false);
        }
        let task = LeaseOwner::Task { container: container.to_owned() };
        let mut leases = lease_record::leases(&self.layout)?;
        leases.retain(|lease| lease.owner.principal() == task);
        Ok(leases.iter().any(|lease| incomplete.iter().any(|partial| lease.layers.contains(&partial.meta.diff_id))))
    }

    /// Where the partial layer of a native layer is, or would be.
    pub(crate) fn partial_directory(&self, layer: &LayerRecord) -> PathBuf {
        partial::directory(&self.layout, layer)
    }

    /// The partial layer in a directory, if there is one.
    pub(crate) fn partial(&self, directory: &Path) -> Result<Option<Partial>, StoreError> {
        Ok(partial::read(directory)?.filter(|partial| partial::is_incomplete(&partial.directory)))
    }

    /// Moves the files of a partial layer to their place. What is there already cannot be used and is removed.
    pub(crate) fn commit_partial(
        &self,
        staged: &Staged,
        target: &Path,
        (meta, image): (&LayerMeta, &Reference),
    ) -> Result<Partial, StoreError> {
        files::write_json(&staged.path().join(layers::RECORD), meta, Durability::Later)?;
        let source = Source { image: image.clone() };
        files::write_json(&staged.path().join(SOURCE), &source, Durability::Later)?;
        failpoint::at("partial-before-rename");
        if !files::rename_directory(staged.path(), target)? {
            self.discard_partial(target)?;
            if !files::rename_directory(staged.path(), target)? {
                return Err(StoreError::io("renaming to", target)(io::Error::from(io::ErrorKind::AlreadyExists)));
            }
        }
        Ok(Partial { directory: target.to_owned(), meta: meta.clone(), image: image.clone() })
    }

    /// Removes a partial layer. A mount of it keeps the data that is here.
    pub(crate) fn discard_partial(&self, directory: &Path) -> Result<(), StoreError> {
        {
            let _exclusive = self.layout.lock_exclusive()?;
            trash::discard(&self.layout, directory)?;
        }
        trash::empty(&self.layout)
    }

    /// Makes a complete layer an ordinary one. `reads` are the ranges that were read first, if they were noted.
    pub(crate) fn finish_partial(&self, directory: &Path, reads: Option<&[Range<u64>]>) -> Result<(), StoreError> {
        let Some(partial) = partial::read(directory)? else { return Ok(()) };
        let staged = self.staging()?.directory()?;
        let (image, second) = (directory.join(layers::IMAGE), staged.path().join(layers::IMAGE));
        fs::hard_link(&image, &second).map_err(StoreError::io("linking", &image))?;
        if let Some(reads) = reads {
            files::write_json(&staged.path().join(layers::READS), &reads, Durability::Later)?;
        }
        failpoint::at("partial-before-commit");
        layers::commit(&self.layout, staged.path(), &partial.meta.of_this_boot()?)?;
        failpoint::at("partial-before-state");
        STATE.iter().try_for_each(|name| files::remove_file(&directory.join(name)))
    }
}

impl LocalStore {
    /// The files of a layer that containers read first, with the UUID of the layer's file system; `None` if the reads
    /// were not noted.
    pub(crate) fn first_reads(
        &self,
        layer: &LayerRecord,
        limits: &Limits,
    ) -> Result<Option<(String, Vec<ProfiledFile>)>, StoreError> {
        let directory = self.layout.layer(&layer.diff_id);
        let reads: Option<Vec<Range<u64>>> = files::read_json(&directory.join(layers::READS))?;
        let (Some(reads), Some(native)) = (reads, &layer.native) else { return Ok(None) };
        let path = directory.join(layers::IMAGE);
        let mut metadata = Vec::new();
        File::open(&path)
            .and_then(|image| image.take(native.metadata).read_to_end(&mut metadata))
            .map_err(StoreError::io("reading", &path))?;
        let (uuid, files) = layer::files_read(&metadata, &reads, limits)
            .map_err(|problem| StoreError::io("reading", &path)(io::Error::other(problem)))?;
        Ok(Some((hex::encode(uuid), files.into_iter().filter_map(ProfiledFile::new).collect())))
    }
}
