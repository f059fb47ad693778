//! Garbage collection: removes the layers and documents that no image and no lease refers to.
//!
//! Decisions are made under the exclusive store lock. What is removed is only renamed into the trash there, and deleted
//! after the lock is released.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::SystemTime,
};

use layer::Digest;

use super::{
    disk_space::{Amount, DiskUse},
    image_record::{ImageRecord, images},
    layers,
    layout::Layout,
    lease_record::{Lease, leases, remove_abandoned},
    partial,
    references::References,
    retention::{
        self, Candidate, Decision, LayerUse, Pressure, Reason, ReclaimTarget, Removed, Retention, RetentionReport,
    },
    trash,
};
use crate::{error::StoreError, files, reference::Reference};

/// What a removal of images freed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PruneReport {
    /// The names of the removed images.
    pub images: Vec<Reference>,
    /// Number of removed layers.
    pub layers: usize,
    /// Their unpacked bytes.
    pub bytes: u64,
}

/// Removes the selected images unless a lease holds them, then everything unreferenced.
pub(crate) fn prune(layout: &Layout, selected: impl Fn(&ImageRecord) -> bool) -> Result<PruneReport, StoreError> {
    let mut report = PruneReport::default();
    {
        let _exclusive = layout.lock_exclusive()?;
        remove_abandoned(layout)?;
        let leases = leases(layout)?;
        let is_held = |image: &ImageRecord| leases.iter().any(|lease| lease.keeps(image));
        let (removed, kept): (Vec<ImageRecord>, Vec<ImageRecord>) =
            images(layout)?.into_iter().partition(|image| selected(image) && !is_held(image));
        for image in removed {
            failpoint::at("prune-before-forget");
            files::remove_file(&image.path(layout))?;
            report.images.push(image.reference);
        }
        (report.layers, report.bytes) = collect(layout, &References::collect(layout, &kept, &leases))?;
    }
    trash::empty(layout)?;
    Ok(report)
}

/// What [`prune`] would remove of all images. Removes nothing.
pub(crate) fn prunable(layout: &Layout) -> Result<PruneReport, StoreError> {
    let _adding = layout.lock_shared()?;
    let leases = leases(layout)?;
    let (kept, removed): (Vec<ImageRecord>, Vec<ImageRecord>) =
        images(layout)?.into_iter().partition(|image| leases.iter().any(|lease| lease.keeps(image)));
    let references = References::collect(layout, &kept, &leases);
    let mut report =
        PruneReport { images: removed.into_iter().map(|image| image.reference).collect(), ..Default::default() };
    for (_, meta) in layers::all(layout)?.into_iter().filter(|(path, _)| !references.contain(path)) {
        report.layers += 1;
        report.bytes += meta.map_or(0, |meta| meta.bytes);
    }
    Ok(report)
}

/// Removes the images that the policy no longer keeps, and more if a pull needs disk space. Decides and removes under
/// one lock, so an image that is used again meanwhile stays.
pub(crate) fn retain(
    layout: &Layout,
    policy: &Retention,
    reclaim: ReclaimTarget,
) -> Result<RetentionReport, StoreError> {
    let mut report = RetentionReport::default();
    {
        let _exclusive = layout.lock_exclusive()?;
        remove_abandoned(layout)?;
        let leases = leases(layout)?;
        let images = images(layout)?;
        let candidates = images.iter().map(|image| candidate(layout, image, &leases)).collect::<Result<Vec<_>, _>>()?;
        let (now, disk) = (SystemTime::now(), DiskUse::of(layout)?);
        let decision =
            retention::decide(&candidates, &layer_use(layout, &leases, &images)?, now, (disk, reclaim), policy);
        let pressure = match reclaim {
            ReclaimTarget::PolicyOnly => Pressure::of(disk, policy),
            ReclaimTarget::Bytes(_) | ReclaimTarget::Everything => Some(Pressure::Pull),
        };
        for (at, bytes, reason) in &decision.images {
            let unused = now.duration_since(candidates[*at].last_used).unwrap_or_default();
            let pressure = pressure.filter(|_| *reason == Reason::Pressure);
            failpoint::at("retain-before-forget");
            files::remove_file(&images[*at].path(layout))?;
            report.removed.push(Removed { reference: images[*at].reference.clone(), unused, pressure, bytes: *bytes });
        }
        let mut references = References::collect(layout, &kept(images, &decision), &leases);
        references.spare(layout, &decision.spared);
        (report.layers, report.bytes) = collect(layout, &references)?;
        report.next = decision.next;
    }
    trash::empty(layout)?;
    Ok(report)
}

/// The images that the decision does not remove.
fn kept(images: Vec<ImageRecord>, decision: &Decision) -> Vec<ImageRecord> {
    let is_removed = |index: usize| decision.images.iter().any(|(at, ..)| *at == index);
    images.into_iter().enumerate().filter(|(index, _)| !is_removed(*index)).map(|(_, image)| image).collect()
}

fn candidate(layout: &Layout, image: &ImageRecord, leases: &[Lease]) -> Result<Candidate, StoreError> {
    Ok(Candidate {
        last_used: modified(&image.path(layout))?,
        held: image.pinned || leases.iter().any(|lease| lease.keeps(image)),
        layers: image.layers.iter().map(|layer| layer.diff_id.clone()).collect(),
    })
}

fn layer_use(
    layout: &Layout,
    leases: &[Lease],
    images: &[ImageRecord],
) -> Result<BTreeMap<Digest, LayerUse>, StoreError> {
    let leased = leases.iter().flat_map(|lease| &lease.layers);
    let pinned = images.iter().filter(|image| image.pinned).flat_map(|image| &image.layers);
    let held: BTreeSet<&Digest> = leased.chain(pinned.map(|layer| &layer.diff_id)).collect();
    let mut all = BTreeMap::new();
    for (path, meta) in layers::all(layout)? {
        let Some(meta) = meta else { continue };
        let held = held.contains(&meta.diff_id);
        let size = Amount { bytes: meta.bytes, inodes: meta.entries };
        all.insert(meta.diff_id, LayerUse { size, since: modified(&path)?, held });
    }
    Ok(all)
}

fn modified(path: &Path) -> Result<SystemTime, StoreError> {
    std::fs::symlink_metadata(path).and_then(|meta| meta.modified()).map_err(StoreError::io("examining", path))
}

/// Moves all unreferenced layers to the trash and removes unreferenced documents. Returns the number of the layers, and
/// their bytes.
fn collect(layout: &Layout, references: &References) -> Result<(usize, u64), StoreError> {
    let (mut count, mut bytes) = (0, 0);
    for (path, meta) in layers::all(layout)? {
        if !references.contain(&path) {
            trash::discard(layout, &path)?;
            count += 1;
            bytes += meta.map_or(0, |meta| meta.bytes);
        }
    }
    partial::collect(layout, references)?;
    collect_documents(layout, references)?;
    Ok((count, bytes))
}

/// Removes unreferenced manifests, configs and layers of implied directories. Returns their number.
///
/// A process that makes one also writes the record that refers to it before it releases the store lock. So they need no
/// delay.
pub(super) fn collect_documents(layout: &Layout, references: &References) -> Result<usize, StoreError> {
    let mut count = 0;
    for directory in ["fixups", "configs", "manifests"] {
        for path in files::entries(&layout.directory(directory))?.into_iter().filter(|path| !references.contain(path)) {
            if directory == "fixups" {
                trash::discard(layout, &path)?;
            } else {
                failpoint::at("orphans-before-removal");
                files::remove_file(&path)?;
            }
            count += 1;
        }
    }
    Ok(count)
}

/// Removes those of these layers that no image and no lease refers to.
pub(crate) fn remove_unreferenced(layout: &Layout, layers: &[Digest]) -> Result<(), StoreError> {
    {
        let _exclusive = layout.lock_exclusive()?;
        let references = References::collect(layout, &images(layout)?, &leases(layout)?);
        for path in layers.iter().map(|layer| layout.layer(layer)).filter(|path| !references.contain(path)) {
            trash::discard(layout, &path)?;
        }
        partial::collect(layout, &references)?;
    }
    trash::empty(layout)
}
