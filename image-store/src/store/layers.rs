//! Layers on disk: their records, their commit, and their sync.
//!
//! - A layer's directory contains `meta.json` and either `fs/`, which is ready to be an overlay lower directory, or
//!   `fs.erofs`, which is ready to be mounted.
//! - A layer appears by one rename, under the digest of what was unpacked into it.
//! - A layer that another boot left unsynced is never used.
//! - A layer's record changes only under the exclusive store lock, so no change is lost.

use std::{
    fs::File,
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use layer::{Digest, ImageReader, Unpacked};
use serde::{Deserialize, Serialize};

use super::{
    erofs,
    layout::{LayerFormat, Layout, boot_id, open_directory},
    lease_record, trash,
    tree::{self, TreeSummary},
};
use crate::{
    error::StoreError,
    files::{self, Durability},
};

/// A layer's files in a directory.
pub(super) const DIRECTORY: &str = "fs";
/// A layer's files in an EROFS image.
pub(super) const IMAGE: &str = "fs.erofs";
/// Ranges of a native layer that a container read first.
pub(super) const READS: &str = "first-reads.json";
/// The same of an earlier build, which noted chunks of 128 KiB. It is not used.
pub(super) const EARLIER_READS: &str = "reads.json";
/// A layer's record.
pub(super) const RECORD: &str = "meta.json";

/// The record of a layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LayerMeta {
    pub(crate) diff_id: Digest,
    /// The blobs that were verified to unpack to this layer. Any other blob is fetched and verified first: a caller
    /// that knows only a layer's diff id must not get its content.
    pub(crate) blobs: Vec<Digest>,
    /// Unpacked bytes.
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
    /// Implied directories: the layer needs them but does not describe them.
    #[serde(default)]
    pub(crate) implicit_dirs: Vec<HexPath>,
    /// The layer hides everything below it.
    #[serde(default)]
    pub(crate) opaque_root: bool,
    /// The file system refused the marks of overlayfs, so the layer has other marks. It can only be copied.
    #[serde(default)]
    pub(crate) copy_only: bool,
    pub(crate) boot_id: String,
    pub(crate) synced: bool,
    /// The files on disk are, or may be, other than those that were unpacked: a sync failed, or the kernel found a
    /// block that changed. What is in memory may be right.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) suspect: bool,
    /// The summary of the files, taken at the sync. Layers of older builds have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tree: Option<TreeSummary>,
}

/// A path inside a layer, stored as hex because names are bytes.
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

    /// The record of the same layer, of which this boot has just written the files.
    pub(crate) fn of_this_boot(self) -> Result<LayerMeta, StoreError> {
        Ok(LayerMeta { boot_id: boot_id()?, synced: false, suspect: false, tree: None, ..self })
    }

    /// Whether the files on disk are those that were unpacked.
    pub(crate) fn is_intact(&self, boot_id: &str) -> bool {
        !self.suspect && (self.synced || self.boot_id == boot_id)
    }
}

/// The layer's record, if the layer may be used.
pub(crate) fn usable(layout: &Layout, diff_id: &Digest) -> Result<Option<LayerMeta>, StoreError> {
    let layer = layout.layer(diff_id);
    let meta: Option<LayerMeta> = files::read_json(&layer.join(RECORD))?;
    let Some(meta) = meta else { return Ok(None) };
    let usable = meta.diff_id == *diff_id && meta.is_intact(&boot_id()?) && is_mountable(layout, &layer.join(IMAGE))?;
    Ok(usable.then_some(meta))
}

/// Whether this node mounts a layer that has this image, or none.
fn is_mountable(layout: &Layout, image: &Path) -> Result<bool, StoreError> {
    match layout.format {
        LayerFormat::Erofs { zstd: true } => Ok(true),
        LayerFormat::Erofs { zstd: false } => match File::open(image) {
            Ok(file) => Ok(layer::is_compressed(&file).is_ok_and(|compressed| !compressed)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            Err(error) => Err(StoreError::io("opening", image)(error)),
        },
        LayerFormat::Directory => Ok(!image.exists()),
    }
}

/// The path to mount: a directory or an EROFS image.
pub(crate) fn mount_source(layer: &Path) -> PathBuf {
    let image = layer.join(IMAGE);
    if image.exists() { image } else { layer.join(DIRECTORY) }
}

/// The root of the layer's files, opened as a directory.
pub(super) fn open(layer: &Path) -> Result<OwnedFd, StoreError> {
    let image = layer.join(IMAGE);
    match erofs::mount(&image) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => open_directory(&layer.join(DIRECTORY)),
        mounted => mounted.map_err(StoreError::io("mounting", image)),
    }
}

/// Moves a staged layer to its place. If another process was faster, its layer stays and gets our blob added; the
/// caller drops ours.
pub(crate) fn commit(layout: &Layout, staged: &Path, meta: &LayerMeta) -> Result<(), StoreError> {
    failpoint::at("layer-before-record");
    files::write_json(&staged.join(RECORD), meta, Durability::Later)?;
    let target = layout.layer(&meta.diff_id);
    for _ in 0..3 {
        if files::rename_directory(staged, &target)? {
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
    Err(StoreError::io("renaming to", target)(io::Error::from(io::ErrorKind::AlreadyExists)))
}

/// Changes a layer's record, if the layer may still be used.
fn update(layout: &Layout, diff_id: &Digest, change: impl FnOnce(&mut LayerMeta)) -> Result<(), StoreError> {
    // A removed layer needs no lock. Taking it would create its file again in a store that was removed as a whole.
    if usable(layout, diff_id)?.is_none() {
        return Ok(());
    }
    let _exclusive = layout.lock_exclusive()?;
    // Read again: the record may have changed since, and the layer may be gone.
    let Some(before) = usable(layout, diff_id)? else { return Ok(()) };
    let mut after = before.clone();
    change(&mut after);
    if after == before {
        return Ok(());
    }
    files::write_json(&layout.layer(diff_id).join(RECORD), &after, Durability::Later)
}

/// Removes a layer that may not be used. Looks again under the lock: another process may have replaced it meanwhile.
fn discard_broken(layout: &Layout, diff_id: &Digest) -> Result<(), StoreError> {
    let _exclusive = layout.lock_exclusive()?;
    let path = layout.layer(diff_id);
    if usable(layout, diff_id)?.is_some() {
        return Ok(());
    }
    let suspect = files::read_json(&path.join(RECORD))?.is_some_and(|meta: LayerMeta| meta.suspect);
    // Tasks have the image mounted, so they keep it. They would lose the files of a directory.
    if suspect && !path.join(IMAGE).exists() && is_leased(layout, diff_id)? {
        let action = "replacing a layer that is damaged on disk while a task uses it:";
        return Err(StoreError::io(action, path)(io::Error::from(io::ErrorKind::ResourceBusy)));
    }
    trash::discard(layout, &path)
}

fn is_leased(layout: &Layout, diff_id: &Digest) -> Result<bool, StoreError> {
    Ok(lease_record::leases(layout)?.iter().any(|lease| lease.layers.contains(diff_id)))
}

/// All layers with their records; `None` where no record is readable. Files that are not directories are not layers.
pub(crate) fn all(layout: &Layout) -> Result<Vec<(PathBuf, Option<LayerMeta>)>, StoreError> {
    let mut paths = files::entries(&layout.directory("layers"))?;
    paths.retain(|path| path.symlink_metadata().is_ok_and(|meta| meta.is_dir()));
    paths.into_iter().map(|path| Ok((path.clone(), files::read_json(&path.join(RECORD))?))).collect()
}

/// The files of a layer, in either form. An image is not mounted.
pub(super) enum LayerFiles {
    Directory(OwnedFd),
    Image(ImageReader),
}

impl LayerFiles {
    pub(super) fn of(layer: &Path) -> Result<Self, StoreError> {
        let source = mount_source(layer);
        if source.ends_with(IMAGE) {
            let image = File::open(&source).and_then(ImageReader::open);
            Ok(Self::Image(image.map_err(StoreError::io("reading", source))?))
        } else {
            Ok(Self::Directory(open_directory(&source)?))
        }
    }
}

/// The summary of a layer's files.
pub(super) fn tree_of(layer: &Path) -> Result<TreeSummary, StoreError> {
    match LayerFiles::of(layer)? {
        LayerFiles::Directory(files) => tree::summarize(&files, layer),
        LayerFiles::Image(image) => tree::summarize_image(&image, &layer.join(IMAGE)),
    }
}

/// The summary of a layer's files; `None` if they cannot be read.
fn summarize(layout: &Layout, diff_id: &Digest) -> Option<TreeSummary> {
    let summary = tree_of(&layout.layer(diff_id));
    summary.inspect_err(|error| tracing::debug!(%error, "a layer vanished while its files were summarized")).ok()
}

/// Syncs the file system, then marks the unsynced layers of this boot as synced. Returns their number.
///
/// If the kernel could not write everything, none of these layers is trusted any more: the kernel reports such a
/// failure once, and the next attempt would succeed.
pub(crate) fn sync(layout: &Layout) -> Result<usize, StoreError> {
    let boot_id = boot_id()?;
    let unsynced: Vec<LayerMeta> = all(layout)?
        .into_iter()
        .filter_map(|(_, meta)| meta)
        .filter(|meta| !meta.synced && meta.is_intact(&boot_id))
        .map(|meta| LayerMeta { tree: summarize(layout, &meta.diff_id), ..meta })
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

/// Removes a layer that was never confirmed as synced. If a task still uses it, it is only hidden from new tasks.
fn distrust(layout: &Layout, diff_id: &Digest) -> Result<(), StoreError> {
    {
        let _exclusive = layout.lock_exclusive()?;
        if !is_leased(layout, diff_id)? {
            return trash::discard(layout, &layout.layer(diff_id));
        }
    }
    tracing::warn!(layer = %diff_id, "the layer may not have reached the disk; no further task gets it");
    suspect(layout, diff_id)
}

/// From now on no task gets the layer that has it not yet.
pub(super) fn suspect(layout: &Layout, diff_id: &Digest) -> Result<(), StoreError> {
    update(layout, diff_id, |meta| meta.suspect = true)
}
