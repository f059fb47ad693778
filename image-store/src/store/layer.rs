//! Layers on disk: when one may be used, how one comes into being, and how it is marked as safe from a power cut.
//!
//! A layer's folder holds `fs/`, ready to be an overlay lower directory, and `meta.json`. It appears by one rename, under the digest
//! of what was unpacked into it. A layer that another boot left unsynced is never used.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::layout::{Layout, boot_id};
use crate::{
    commit::{self, Durability},
    digest::Digest,
    error::StoreError,
    unpack::Unpacked,
};

/// What is known about a layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LayerMeta {
    pub(crate) diff_id: Digest,
    /// Blobs that were seen to unpack to this layer. Others that claim to are fetched and checked first: knowing a layer's diff id
    /// must not be enough to get its content.
    pub(crate) blobs: Vec<Digest>,
    /// Unpacked bytes.
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
    /// Folders that the layer needs but does not describe, as hex (names are bytes).
    #[serde(default)]
    pub(crate) implicit_dirs: Vec<HexPath>,
    /// The layer hides everything below it.
    #[serde(default)]
    pub(crate) opaque_root: bool,
    pub(crate) boot_id: String,
    pub(crate) synced: bool,
}

/// A path of bytes inside a layer, stored as hex.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct HexPath(pub(crate) Vec<u8>);

impl TryFrom<String> for HexPath {
    type Error = hex::FromHexError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Ok(Self(hex::decode(text)?))
    }
}

impl From<HexPath> for String {
    fn from(path: HexPath) -> String {
        hex::encode(path.0)
    }
}

impl LayerMeta {
    pub(crate) fn new(unpacked: &Unpacked) -> Result<LayerMeta, StoreError> {
        Ok(LayerMeta {
            diff_id: unpacked.diff_id.clone(),
            blobs: vec![unpacked.blob.clone()],
            bytes: unpacked.bytes,
            entries: unpacked.entries,
            implicit_dirs: unpacked.implicit.iter().cloned().map(HexPath).collect(),
            opaque_root: unpacked.opaque_root,
            boot_id: boot_id()?,
            synced: false,
        })
    }

    /// Whether what stands on disk is what was written.
    pub(crate) fn is_intact(&self, boot_id: &str) -> bool {
        self.synced || self.boot_id == boot_id
    }
}

fn meta_path(layer: &Path) -> PathBuf {
    layer.join("meta.json")
}

/// The layer's record, if the layer may be used.
pub(crate) fn usable(layout: &Layout, diff_id: &Digest) -> Result<Option<LayerMeta>, StoreError> {
    let meta: Option<LayerMeta> = commit::read_json(&meta_path(&layout.layer(diff_id)))?;
    match meta {
        Some(meta) if meta.diff_id == *diff_id && meta.is_intact(&boot_id()?) => Ok(Some(meta)),
        _ => Ok(None),
    }
}

/// Where the layer's files are.
pub(crate) fn fs(layout: &Layout, diff_id: &Digest) -> PathBuf {
    layout.layer(diff_id).join("fs")
}

/// Moves a staged layer to its place. If another one got there first, ours is dropped by its owner and the other one learns
/// about our blob.
pub(crate) fn commit(layout: &Layout, staged: &Path, meta: &LayerMeta) -> Result<(), StoreError> {
    commit::write_json(&meta_path(staged), meta, Durability::Later)?;
    let target = layout.layer(&meta.diff_id);
    for _ in 0..3 {
        if commit::rename_folder(staged, &target)? {
            return Ok(());
        }
        if let Some(winner) = usable(layout, &meta.diff_id)? {
            return add_blobs(layout, winner, &meta.blobs);
        }
        discard_broken(layout, &meta.diff_id)?;
    }
    Err(StoreError::io("renaming to", target)(std::io::Error::from(std::io::ErrorKind::AlreadyExists)))
}

fn add_blobs(layout: &Layout, mut meta: LayerMeta, blobs: &[Digest]) -> Result<(), StoreError> {
    let new: Vec<_> = blobs.iter().filter(|blob| !meta.blobs.contains(blob)).cloned().collect();
    if new.is_empty() {
        return Ok(());
    }
    meta.blobs.extend(new);
    rewrite(layout, &meta)
}

fn rewrite(layout: &Layout, meta: &LayerMeta) -> Result<(), StoreError> {
    commit::write_json(&meta_path(&layout.layer(&meta.diff_id)), meta, Durability::Later)
}

/// Moves a layer that may not be used out of the way. Looks again under the lock: somebody may have replaced it meanwhile.
fn discard_broken(layout: &Layout, diff_id: &Digest) -> Result<(), StoreError> {
    let _lock = layout.lock(true)?;
    if usable(layout, diff_id)?.is_none() {
        to_trash(layout, &layout.layer(diff_id))?;
    }
    Ok(())
}

/// Moves a folder to the trash; one that is gone already is fine.
pub(crate) fn to_trash(layout: &Layout, path: &Path) -> Result<(), StoreError> {
    match std::fs::rename(path, layout.trash()) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(StoreError::io("discarding", path)(error)),
        _ => Ok(()),
    }
}

/// All layers with their records; `None` where there is no readable one.
pub(crate) fn all(layout: &Layout) -> Result<Vec<(PathBuf, Option<LayerMeta>)>, StoreError> {
    let paths = commit::entries(&layout.folder("layers"))?;
    paths.into_iter().map(|path| Ok((path.clone(), commit::read_json(&meta_path(&path))?))).collect()
}

/// Makes everything that was written so far last, then says so in the records of unsynced layers of this boot.
pub(crate) fn sync(layout: &Layout) -> Result<usize, StoreError> {
    let boot_id = boot_id()?;
    let unsynced: Vec<LayerMeta> = all(layout)?
        .into_iter()
        .filter_map(|(_, meta)| meta)
        .filter(|meta| !meta.synced && meta.boot_id == boot_id)
        .collect();
    let root = super::layout::open_folder(layout.root())?;
    rustix::fs::syncfs(&root).map_err(StoreError::io("syncing", layout.root()))?;
    let mut count = 0;
    for layer in unsynced {
        // Read again: the record may have changed since, and the layer may be gone.
        let Some(mut meta) = usable(layout, &layer.diff_id)? else { continue };
        meta.synced = true;
        match rewrite(layout, &meta) {
            Ok(()) => count += 1,
            Err(error) => tracing::debug!(%error, "a layer vanished while it was marked as synced"),
        }
    }
    Ok(count)
}
