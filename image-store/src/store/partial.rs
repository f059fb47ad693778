//! Partial layers: native layers that are mounted before all of their data is here.
//!
//! - `partial/<key>` contains the files of the crate `lazy`, the layer's record, and the name of an image, by which its
//!   sources are found again.
//! - The key contains the root of the hash tree: until the whole digest was checked, the root is only one manifest's
//!   word, and must not decide what another manifest's layer is.
//! - A complete layer appears in `layers` with a second name of the same file. The first name stays as long as a lease
//!   may have its path. Without `partial.json`, the layer is complete.
//! - A layer that no image and no lease refers to is removed. Then its service ends by itself.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use layer::Digest;
use serde::{Deserialize, Serialize};

use super::{
    image_record::LayerRecord,
    layers::{self, LayerMeta},
    layout::Layout,
    references::References,
    trash,
};
use crate::{error::StoreError, files, reference::Reference};

/// The name of the image from which the layer comes.
pub(super) const SOURCE: &str = "source.json";
/// The events that a service has read and not answered.
pub(super) const EVENTS: &str = "events";
/// The files of the crate `lazy` that a complete layer does not need.
pub(super) const STATE: [&str; 2] = ["partial.json", "present"];

/// A layer whose data is coming, or has just come.
#[derive(Debug, Clone)]
pub(crate) struct Partial {
    pub(crate) directory: PathBuf,
    pub(crate) meta: LayerMeta,
    /// An image that has the layer.
    pub(crate) image: Reference,
}

/// The partial layers of an image, by their diff ids.
pub(crate) type Partials = HashMap<Digest, Partial>;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Source {
    pub(super) image: Reference,
}

/// Where the partial layer of a native layer is, or would be.
pub(super) fn directory(layout: &Layout, layer: &LayerRecord) -> PathBuf {
    let native = layer.native.as_ref();
    let root = native.map(|native| native.hash_root.as_str()).unwrap_or_default();
    let metadata = native.map_or(0, |native| native.metadata);
    layout.partial(&Digest::sha256(format!("{} {} {metadata} {root}", layer.blob, layer.size).as_bytes()))
}

/// All partial layers with a record, also complete ones.
pub(super) fn all(layout: &Layout) -> Result<Vec<Partial>, StoreError> {
    let mut found = Vec::new();
    for path in files::entries(&layout.directory("partial"))? {
        found.extend(read(&path)?);
    }
    Ok(found)
}

/// The partial layer in a directory, also a complete one.
pub(super) fn read(directory: &Path) -> Result<Option<Partial>, StoreError> {
    // The file of events is not a directory.
    if !directory.is_dir() {
        return Ok(None);
    }
    let meta: Option<LayerMeta> = files::read_json(&directory.join(layers::RECORD))?;
    let source: Option<Source> = files::read_json(&directory.join(SOURCE))?;
    let (Some(meta), Some(Source { image })) = (meta, source) else { return Ok(None) };
    Ok(Some(Partial { directory: directory.to_owned(), meta, image }))
}

pub(super) fn is_incomplete(directory: &Path) -> bool {
    directory.join(STATE[0]).exists()
}

/// Moves the partial layers that are not needed any more to the trash. Needs the exclusive store lock.
pub(super) fn collect(layout: &Layout, references: &References) -> Result<(), StoreError> {
    for path in files::entries(&layout.directory("partial"))?.into_iter().filter(|path| path.is_dir()) {
        let needed = match read(&path)? {
            Some(partial) if is_incomplete(&path) => references.contain(&layout.layer(&partial.meta.diff_id)),
            Some(partial) => references.is_leased(&partial.meta.diff_id),
            None => false,
        };
        if !needed {
            trash::discard(layout, &path)?;
        }
    }
    Ok(())
}
