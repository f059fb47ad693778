//! What an operator wants to know of the images: when they were used, by whom they are held, how much room they take.

use std::time::SystemTime;

use super::{
    layer,
    layout::Layout,
    record::{self, ImageRecord, Lease},
    sweep,
};
use crate::{digest::Digest, error::StoreError, lease::LeaseOwner};

/// One image, and who uses it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageUsage {
    /// What the store knows of it.
    pub record: ImageRecord,
    /// When it was last leased or released; an image that is held counts as used still.
    pub last_used: SystemTime,
    /// Owners of leases that keep its name.
    pub held_by: Vec<LeaseOwner>,
    /// Unpacked bytes of its layers that are here, those that it shares with others included.
    pub bytes: u64,
    /// Layers that are not here, or may not be used.
    pub missing: Vec<Digest>,
}

/// All images, by name.
pub(crate) fn usage(layout: &Layout) -> Result<Vec<ImageUsage>, StoreError> {
    let _adding = layout.lock(false)?;
    let leases: Vec<Lease> = record::all(layout, "leases")?;
    let records: Vec<ImageRecord> = record::all(layout, "images")?;
    let mut all = records.into_iter().map(|record| one(layout, record, &leases)).collect::<Result<Vec<_>, _>>()?;
    all.sort_by(|a, b| (&a.record.reference, a.record.loaded).cmp(&(&b.record.reference, b.record.loaded)));
    Ok(all)
}

fn one(layout: &Layout, record: ImageRecord, leases: &[Lease]) -> Result<ImageUsage, StoreError> {
    let path = record.path(layout);
    let last_used =
        std::fs::metadata(&path).and_then(|meta| meta.modified()).map_err(StoreError::io("examining", path))?;
    let held_by = leases.iter().filter(|lease| sweep::holds(lease, &record)).map(|lease| lease.owner.clone()).collect();
    let (mut bytes, mut missing) = (0u64, Vec::new());
    for layer in &record.layers {
        match layer::usable(layout, &layer.diff_id)? {
            Some(meta) => bytes = bytes.saturating_add(meta.bytes),
            None => missing.push(layer.diff_id.clone()),
        }
    }
    Ok(ImageUsage { record, last_used, held_by, bytes, missing })
}
