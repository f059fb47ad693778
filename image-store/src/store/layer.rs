//! Layers on disk: when one may be used, how one comes into being, and how it is marked as safe from a power cut.
//!
//! Whoever changes a layer's record holds the store's lock alone: two changes at once would lose one of them.
//!
//! A layer's directory holds `fs/`, ready to be an overlay lower directory, or `fs.erofs`, which is ready when it is mounted; and `meta.json`. It
//! appears by one rename, under the digest of what was unpacked into it. A layer that another boot left unsynced is never used.

use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use ::layer::Unpacked;
use serde::{Deserialize, Serialize};

use super::{
    erofs,
    layout::{Layout, boot_id, open_directory},
    record::{self, Lease},
    tree::{self, TreeSummary},
};
use crate::{
    commit::{self, Durability},
    config::LayerFormat,
    digest::Digest,
    error::StoreError,
};

/// A layer's files in a directory.
pub(super) const DIRECTORY: &str = "fs";
/// A layer's files in a file system image.
pub(super) const IMAGE: &str = "fs.erofs";

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
    /// Directories that the layer needs but does not describe, as hex (names are bytes).
    #[serde(default)]
    pub(crate) implicit_dirs: Vec<HexPath>,
    /// The layer hides everything below it.
    #[serde(default)]
    pub(crate) opaque_root: bool,
    /// The layer's marks are not those of overlayfs, because the file system refused them.
    #[serde(default)]
    pub(crate) copy_only: bool,
    pub(crate) boot_id: String,
    pub(crate) synced: bool,
    /// The kernel could not write everything that was in memory when this layer was to be made last. What is read of it may be
    /// right until the memory is needed for something else.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) suspect: bool,
    /// What its files looked like when they were made to last; layers of older builds have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tree: Option<TreeSummary>,
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
            implicit_dirs: unpacked.implied_directories.iter().cloned().map(HexPath).collect(),
            opaque_root: unpacked.opaque_root,
            copy_only: unpacked.copy_only,
            boot_id: boot_id()?,
            synced: false,
            suspect: false,
            tree: None,
        })
    }

    /// Whether what stands on disk is what was written.
    pub(crate) fn is_intact(&self, boot_id: &str) -> bool {
        !self.suspect && (self.synced || self.boot_id == boot_id)
    }
}

fn meta_path(layer: &Path) -> PathBuf {
    layer.join("meta.json")
}

/// The layer's record, if the layer may be used.
pub(crate) fn usable(layout: &Layout, diff_id: &Digest) -> Result<Option<LayerMeta>, StoreError> {
    let layer = layout.layer(diff_id);
    let meta: Option<LayerMeta> = commit::read_json(&meta_path(&layer))?;
    let Some(meta) = meta else { return Ok(None) };
    let mountable = || layout.layers == LayerFormat::Erofs || !layer.join(IMAGE).exists();
    let usable = meta.diff_id == *diff_id && meta.is_intact(&boot_id()?) && mountable();
    Ok(usable.then_some(meta))
}

/// Where the layer's files are: a directory, or an image of a file system.
pub(crate) fn files(layer: &Path) -> PathBuf {
    let image = layer.join(IMAGE);
    if image.exists() { image } else { layer.join(DIRECTORY) }
}

/// The layer's files, open as a directory.
pub(super) fn open(layer: &Path) -> Result<OwnedFd, StoreError> {
    let image = layer.join(IMAGE);
    match erofs::mount(&image) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => open_directory(&layer.join(DIRECTORY)),
        mounted => mounted.map_err(StoreError::io("mounting", image)),
    }
}

/// Moves a staged layer to its place. If another one got there first, ours is dropped by its owner and the other one learns
/// about our blob.
pub(crate) fn commit(layout: &Layout, staged: &Path, meta: &LayerMeta) -> Result<(), StoreError> {
    failpoint::at("layer-before-record");
    commit::write_json(&meta_path(staged), meta, Durability::Later)?;
    let target = layout.layer(&meta.diff_id);
    for _ in 0..3 {
        if commit::rename_directory(staged, &target)? {
            return Ok(());
        }
        if usable(layout, &meta.diff_id)?.is_some() {
            return update(layout, &meta.diff_id, |winner| {
                let new: Vec<_> = meta.blobs.iter().filter(|blob| !winner.blobs.contains(blob)).cloned().collect();
                winner.blobs.extend(new);
            });
        }
        discard_broken(layout, &meta.diff_id)?;
    }
    Err(StoreError::io("renaming to", target)(std::io::Error::from(std::io::ErrorKind::AlreadyExists)))
}

/// Changes a layer's record, if the layer may still be used.
fn update(layout: &Layout, diff_id: &Digest, change: impl FnOnce(&mut LayerMeta)) -> Result<(), StoreError> {
    // What is gone needs no lock, which would make its file again where a store was taken away altogether.
    if usable(layout, diff_id)?.is_none() {
        return Ok(());
    }
    let _alone = layout.lock(true)?;
    // Read again: the record may have changed since, and the layer may be gone.
    let Some(before) = usable(layout, diff_id)? else { return Ok(()) };
    let mut after = before.clone();
    change(&mut after);
    if after == before { Ok(()) } else { rewrite(layout, &after) }
}

/// For those who hold the store's lock alone: to take it once more here would be to wait for oneself.
fn rewrite(layout: &Layout, meta: &LayerMeta) -> Result<(), StoreError> {
    commit::write_json(&meta_path(&layout.layer(&meta.diff_id)), meta, Durability::Later)
}

/// Moves a layer that may not be used out of the way. Looks again under the lock: somebody may have replaced it meanwhile.
fn discard_broken(layout: &Layout, diff_id: &Digest) -> Result<(), StoreError> {
    let _alone = layout.lock(true)?;
    let path = layout.layer(diff_id);
    if usable(layout, diff_id)?.is_some() {
        return Ok(());
    }
    if commit::read_json(&meta_path(&path))?.is_some_and(|meta: LayerMeta| meta.suspect) && is_leased(layout, diff_id)?
    {
        let action = "replacing a layer that did not reach the disk while a task uses it:";
        return Err(StoreError::io(action, path)(std::io::Error::from(std::io::ErrorKind::ResourceBusy)));
    }
    to_trash(layout, &path)
}

fn is_leased(layout: &Layout, diff_id: &Digest) -> Result<bool, StoreError> {
    let leases: Vec<Lease> = record::all(layout, "leases")?;
    Ok(leases.iter().any(|lease| lease.layers.contains(diff_id)))
}

/// Moves a directory to the trash; one that is gone already is fine.
pub(crate) fn to_trash(layout: &Layout, path: &Path) -> Result<(), StoreError> {
    failpoint::at("trash-before-rename");
    match std::fs::rename(path, layout.trash()) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(StoreError::io("discarding", path)(error)),
        _ => Ok(()),
    }
}

/// All layers with their records; `None` where there is no readable one. What is no directory is no layer.
pub(crate) fn all(layout: &Layout) -> Result<Vec<(PathBuf, Option<LayerMeta>)>, StoreError> {
    let mut paths = commit::entries(&layout.directory("layers"))?;
    paths.retain(|path| path.symlink_metadata().is_ok_and(|meta| meta.is_dir()));
    paths.into_iter().map(|path| Ok((path.clone(), commit::read_json(&meta_path(&path))?))).collect()
}

/// What a layer's files look like; nobody's pull waits for it.
fn look(layout: &Layout, diff_id: &Digest) -> Option<TreeSummary> {
    let path = layout.layer(diff_id);
    let looked = open(&path).and_then(|files| tree::summarize(&files, &path));
    looked.inspect_err(|error| tracing::debug!(%error, "a layer vanished while it was looked at")).ok()
}

/// Makes everything that was written so far last, then says so in the records of unsynced layers of this boot. If the kernel
/// could not write all of it, none of these layers is trusted any more: it tells so once, and the next attempt would succeed.
pub(crate) fn sync(layout: &Layout) -> Result<usize, StoreError> {
    let boot_id = boot_id()?;
    let unsynced: Vec<LayerMeta> = all(layout)?
        .into_iter()
        .filter_map(|(_, meta)| meta)
        .filter(|meta| !meta.synced && meta.is_intact(&boot_id))
        .map(|meta| LayerMeta { tree: look(layout, &meta.diff_id), ..meta })
        .collect();
    if let Err(errno) = rustix::fs::syncfs(layout.root_fd()) {
        for layer in &unsynced {
            distrust(layout, &layer.diff_id)?;
        }
        return Err(StoreError::io("syncing", layout.root())(errno));
    }
    let mut count = 0;
    for layer in unsynced {
        failpoint::at("sync-before-mark");
        update(layout, &layer.diff_id, |meta| {
            meta.synced = true;
            meta.tree = layer.tree;
            count += 1;
        })?;
    }
    Ok(count)
}

/// Takes a layer away of which nobody knows whether it is on disk; one that a task uses stays, for nobody else.
fn distrust(layout: &Layout, diff_id: &Digest) -> Result<(), StoreError> {
    {
        let _alone = layout.lock(true)?;
        if !is_leased(layout, diff_id)? {
            return to_trash(layout, &layout.layer(diff_id));
        }
    }
    tracing::warn!(layer = %diff_id, "the layer may not have reached the disk; no further task gets it");
    update(layout, diff_id, |meta| meta.suspect = true)
}
