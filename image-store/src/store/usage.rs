//! The images with their use: last use, owners of leases, disk space.

use std::time::SystemTime;

use layer::Digest;

use super::{
    image_record::{self, ImageRecord},
    layers,
    layout::Layout,
    lease_record::{self, Lease},
    partial,
};
use crate::{error::StoreError, lease::LeaseOwner};

/// One image with its use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageUsage {
    /// The record of the image.
    pub record: ImageRecord,
    /// The last time when it was leased or released. An image that a lease holds is in use now.
    pub last_used: SystemTime,
    /// Owners of leases that keep its record.
    pub held_by: Vec<LeaseOwner>,
    /// Unpacked bytes of its layers on disk, also of those that other images share.
    pub bytes: u64,
    /// Unpacked bytes of each layer of the record; `None` if it is missing.
    pub layer_bytes: Vec<Option<u64>>,
    /// Layers whose data is coming while tasks use them.
    pub incomplete: Vec<Digest>,
    /// Layers that are not on disk, or that may not be used.
    pub missing: Vec<Digest>,
}

/// All images, sorted by name.
pub(crate) fn usage(layout: &Layout) -> Result<Vec<ImageUsage>, StoreError> {
    let _adding = layout.lock_shared()?;
    let leases = lease_record::leases(layout)?;
    let records = image_record::images(layout)?;
    let coming = partial::all(layout)?;
    let mut all =
        records.into_iter().map(|record| one(layout, record, &leases, &coming)).collect::<Result<Vec<_>, _>>()?;
    all.sort_by(|a, b| (&a.record.reference, a.record.loaded).cmp(&(&b.record.reference, b.record.loaded)));
    Ok(all)
}

/// The size of a store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreSize {
    /// Images with a record.
    pub images: u64,
    /// Layers on disk, also those without an image.
    pub layers: u64,
    /// Their unpacked bytes. A layer that several images share counts once.
    pub bytes: u64,
}

/// The use of the file system of a store, by all its users.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskSize {
    /// Bytes in use.
    pub used: u64,
    /// Bytes that are available.
    pub available: u64,
}

/// The size of all images together.
pub(crate) fn size(layout: &Layout) -> Result<StoreSize, StoreError> {
    let layers = layers::all(layout)?;
    Ok(StoreSize {
        images: image_record::images(layout)?.len() as u64,
        layers: layers.len() as u64,
        bytes: layers.iter().filter_map(|(_, meta)| Some(meta.as_ref()?.bytes)).fold(0, u64::saturating_add),
    })
}

fn one(
    layout: &Layout,
    record: ImageRecord,
    leases: &[Lease],
    coming: &[partial::Partial],
) -> Result<ImageUsage, StoreError> {
    let path = record.path(layout);
    let last_used =
        std::fs::metadata(&path).and_then(|meta| meta.modified()).map_err(StoreError::io("examining", path))?;
    let held_by = leases.iter().filter(|lease| lease.keeps(&record)).map(|lease| lease.owner.clone()).collect();
    let (mut layer_bytes, mut incomplete, mut missing) = (Vec::new(), Vec::new(), Vec::new());
    for layer in &record.layers {
        let usable = layers::usable(layout, &layer.diff_id)?;
        if usable.is_none() {
            let is_coming = coming.iter().any(|partial| partial.directory == partial::directory(layout, layer));
            let list = if is_coming { &mut incomplete } else { &mut missing };
            list.push(layer.diff_id.clone());
        }
        layer_bytes.push(usable.map(|meta| meta.bytes));
    }
    let bytes = layer_bytes.iter().flatten().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
    Ok(ImageUsage { record, last_used, held_by, bytes, layer_bytes, incomplete, missing })
}

/// One layer on disk with its use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerUsage {
    /// The digest of the unpacked blob.
    pub diff_id: Digest,
    /// Unpacked bytes.
    pub bytes: u64,
    /// The number of images that have it.
    pub images: usize,
    /// A lease holds it.
    pub held: bool,
}

/// All layers on disk.
pub(crate) fn layer_usage(layout: &Layout) -> Result<Vec<LayerUsage>, StoreError> {
    let _adding = layout.lock_shared()?;
    let leases = lease_record::leases(layout)?;
    let records = image_record::images(layout)?;
    let one = |meta: layers::LayerMeta| LayerUsage {
        images: records.iter().filter(|image| image.layers.iter().any(|layer| layer.diff_id == meta.diff_id)).count(),
        held: leases.iter().any(|lease| lease.layers.contains(&meta.diff_id)),
        bytes: meta.bytes,
        diff_id: meta.diff_id,
    };
    Ok(layers::all(layout)?.into_iter().filter_map(|(_, meta)| meta.map(one)).collect())
}
