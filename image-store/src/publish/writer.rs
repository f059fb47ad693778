//! A new OCI layout in a directory, which is removed unless it is finished.

use std::{
    fs,
    path::{Path, PathBuf},
};

use layer::Digest;
use serde_json::json;

use crate::{
    archive::{self, NAME},
    error::StoreError,
};

/// A layout that is being written. Dropping it removes it.
pub(super) struct LayoutWriter {
    path: PathBuf,
    finished: bool,
}

/// What `index.json` says about the image.
pub(super) struct Top<'a> {
    pub(super) media_type: &'a str,
    pub(super) digest: &'a Digest,
    pub(super) size: u64,
    pub(super) name: Option<&'a str>,
}

impl LayoutWriter {
    /// Makes the directory. It must not exist.
    pub(super) fn create(path: &Path) -> Result<Self, StoreError> {
        fs::create_dir(path).map_err(StoreError::io("creating", path))?;
        let layout = Self { path: path.to_owned(), finished: false };
        for algorithm in ["blobs/sha256", "blobs/sha512"] {
            let blobs = path.join(algorithm);
            fs::create_dir_all(&blobs).map_err(StoreError::io("creating", blobs))?;
        }
        Ok(layout)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a blob.
    pub(super) fn blob(&self, digest: &Digest) -> PathBuf {
        self.path.join(archive::path_of(digest))
    }

    /// Stores a document, which has this digest.
    pub(super) fn store(&self, digest: &Digest, bytes: &[u8]) -> Result<(), StoreError> {
        write(&self.blob(digest), bytes)
    }

    /// Names the image. Without this the directory is no layout.
    pub(super) fn finish(mut self, top: &Top<'_>) -> Result<(), StoreError> {
        let mut entry = json!({"mediaType": top.media_type, "digest": top.digest.as_str(), "size": top.size});
        if let Some(name) = top.name {
            entry["annotations"] = json!({NAME: name});
        }
        write(&self.path.join("oci-layout"), br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        let index = json!({"schemaVersion": 2, "manifests": [entry]});
        write(&self.path.join("index.json"), index.to_string().as_bytes())?;
        self.finished = true;
        Ok(())
    }
}

impl Drop for LayoutWriter {
    fn drop(&mut self) {
        if !self.finished
            && let Err(error) = fs::remove_dir_all(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "an incomplete layout is left");
        }
    }
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    fs::write(path, bytes).map_err(StoreError::io("writing", path))
}
