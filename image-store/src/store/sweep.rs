//! Taking away: what dead processes left, and what no image and no lease wants any more.
//!
//! Decisions are made under the store's lock held alone; what goes is only renamed to the trash there, and deleted after the lock
//! is free again.

use std::{collections::BTreeMap, path::Path, time::SystemTime};

use super::{
    layer,
    layout::{Layout, boot_id, open_directory},
    record::{self, ImageRecord, Lease, Wanted},
    retention::{self, Amount, Candidate, LayerFacts, Pressure, Removed, Retention, RetentionReport, Why, Wish},
    room, staging, turn,
};
use crate::{commit, digest::Digest, error::StoreError, reference::Reference};

/// What a sweep found and removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Staging directories of dead processes.
    pub staging: usize,
    /// Layers that another boot left unsynced, or without a readable record.
    pub broken_layers: usize,
    /// Temporary files of interrupted writes.
    pub temporaries: usize,
    /// Manifests, configs and fix-ups that no image and no lease names.
    pub orphans: usize,
    /// Lock files of dead processes.
    pub locks: usize,
    /// Layers of this boot that were synced now.
    pub synced: usize,
}

/// What a removal of images gave back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PruneReport {
    /// Image names that are gone.
    pub images: Vec<Reference>,
    /// Layers that are gone.
    pub layers: usize,
    /// Their unpacked bytes.
    pub bytes: u64,
}

/// Removes what cannot be used by anybody.
pub(crate) fn sweep(layout: &Layout) -> Result<SweepReport, StoreError> {
    let mut report = SweepReport::default();
    {
        let _alone = layout.lock(true)?;
        for path in commit::entries(&layout.directory("staging"))? {
            if staging::is_dead(&path)? {
                layer::to_trash(layout, &path)?;
                report.staging += 1;
            }
        }
        let boot_id = boot_id()?;
        let leases: Vec<Lease> = record::all(layout, "leases")?;
        for (path, meta) in layer::all(layout)? {
            // Its record is replaced under the lock alone, so this is nobody's.
            report.temporaries += remove_temporaries(&path)?;
            let keep = meta.is_some_and(|meta| {
                let in_use = meta.suspect && leases.iter().any(|lease| lease.layers.contains(&meta.diff_id));
                meta.is_intact(&boot_id) || in_use
            });
            if !keep {
                layer::to_trash(layout, &path)?;
                report.broken_layers += 1;
            }
        }
        for directory in ["images", "leases", "configs", "manifests", ""] {
            report.temporaries += remove_temporaries(&layout.directory(directory))?;
        }
        report.orphans = take_orphans(layout, &Wanted::collect(layout, &record::all(layout, "images")?, &leases))?;
        report.locks = turn::sweep(&layout.directory("locks"))?;
    }
    empty_trash(layout)?;
    report.synced = layer::sync(layout)?;
    Ok(report)
}

/// Writers hold the store's lock, so whatever temporary is seen under the lock alone belongs to nobody.
fn remove_temporaries(directory: &Path) -> Result<usize, StoreError> {
    let mut count = 0;
    for entry in std::fs::read_dir(directory).map_err(StoreError::io("listing", directory))? {
        let entry = entry.map_err(StoreError::io("listing", directory))?;
        if entry.file_name().as_encoded_bytes().starts_with(commit::TEMPORARY.as_bytes()) {
            failpoint::at("sweep-before-temporary");
            record::remove_file(&entry.path())?;
            count += 1;
        }
    }
    Ok(count)
}

/// Forgets images for which `goes` says so and that no lease holds, then removes what nobody wants.
pub(crate) fn prune(layout: &Layout, goes: impl Fn(&ImageRecord) -> bool) -> Result<PruneReport, StoreError> {
    let mut report = PruneReport::default();
    {
        let _alone = layout.lock(true)?;
        let leases: Vec<Lease> = record::all(layout, "leases")?;
        let (gone, kept): (Vec<ImageRecord>, Vec<ImageRecord>) = record::all(layout, "images")?
            .into_iter()
            .partition(|image: &ImageRecord| goes(image) && !leases.iter().any(|lease| holds(lease, image)));
        for image in gone {
            failpoint::at("prune-before-forget");
            record::remove_file(&image.path(layout))?;
            report.images.push(image.reference);
        }
        (report.layers, report.bytes) = take_away(layout, &Wanted::collect(layout, &kept, &leases))?;
    }
    empty_trash(layout)?;
    Ok(report)
}

/// Removes what the policy lets go, or more if a pull wishes for it. Looks and acts under one lock, so that nothing that is used again meanwhile goes.
pub(crate) fn retain(layout: &Layout, policy: &Retention, wish: Wish) -> Result<RetentionReport, StoreError> {
    let mut report = RetentionReport::default();
    {
        let _alone = layout.lock(true)?;
        let leases: Vec<Lease> = record::all(layout, "leases")?;
        let mut images: Vec<ImageRecord> = record::all(layout, "images")?;
        let candidates = images.iter().map(|image| candidate(layout, image, &leases)).collect::<Result<Vec<_>, _>>()?;
        let (now, disk) = (SystemTime::now(), room::disk(layout)?);
        let facts = layer_facts(layout, &leases)?;
        let decision = retention::decide(&candidates, &facts, now, (disk, wish), policy);
        let pressure = if wish == Wish::Policy { disk.pressure(policy) } else { Some(Pressure::Pull) };
        for (at, bytes, why) in &decision.images {
            let reference = images[*at].reference.clone();
            let unused = now.duration_since(candidates[*at].last_used).unwrap_or_default();
            let pressure = pressure.filter(|_| *why == Why::Pressure);
            failpoint::at("retain-before-forget");
            record::remove_file(&images[*at].path(layout))?;
            report.removed.push(Removed { reference, unused, pressure, bytes: *bytes });
        }
        // From the back, so that the places in front stay what they are.
        let mut gone: Vec<usize> = decision.images.iter().map(|(at, ..)| *at).collect();
        gone.sort_unstable();
        for at in gone.into_iter().rev() {
            images.remove(at);
        }
        let mut wanted = Wanted::collect(layout, &images, &leases);
        wanted.spare(layout, &decision.spared);
        (report.layers, report.bytes) = take_away(layout, &wanted)?;
        report.next = decision.next;
    }
    empty_trash(layout)?;
    Ok(report)
}

fn candidate(layout: &Layout, image: &ImageRecord, leases: &[Lease]) -> Result<Candidate, StoreError> {
    Ok(Candidate {
        last_used: modified(&image.path(layout))?,
        held: leases.iter().any(|lease| holds(lease, image)),
        layers: image.layers.iter().map(|layer| layer.diff_id.clone()).collect(),
    })
}

fn layer_facts(layout: &Layout, leases: &[Lease]) -> Result<BTreeMap<Digest, LayerFacts>, StoreError> {
    let mut facts = BTreeMap::new();
    for (path, meta) in layer::all(layout)? {
        let Some(meta) = meta else { continue };
        let held = leases.iter().any(|lease| lease.layers.contains(&meta.diff_id));
        let size = Amount { bytes: meta.bytes, inodes: meta.entries };
        facts.insert(meta.diff_id, LayerFacts { size, since: modified(&path)?, held });
    }
    Ok(facts)
}

fn modified(path: &Path) -> Result<SystemTime, StoreError> {
    std::fs::symlink_metadata(path).and_then(|meta| meta.modified()).map_err(StoreError::io("examining", path))
}

/// Moves everything that nobody wants out of the way. Returns how many layers that were, and their bytes.
fn take_away(layout: &Layout, wanted: &Wanted) -> Result<(usize, u64), StoreError> {
    let (mut layers, mut bytes) = (0, 0);
    for (path, meta) in layer::all(layout)? {
        if !wanted.contains(&path) {
            layer::to_trash(layout, &path)?;
            layers += 1;
            bytes += meta.map_or(0, |meta| meta.bytes);
        }
    }
    take_orphans(layout, wanted)?;
    Ok((layers, bytes))
}

/// Removes what stands beside layers and that nobody wants. Whoever makes such a thing names it before the store's lock is free
/// again, so it needs no delay.
fn take_orphans(layout: &Layout, wanted: &Wanted) -> Result<usize, StoreError> {
    let mut count = 0;
    for directory in ["fixups", "configs", "manifests"] {
        for path in commit::entries(&layout.directory(directory))?.into_iter().filter(|path| !wanted.contains(path)) {
            if directory == "fixups" {
                layer::to_trash(layout, &path)?;
            } else {
                failpoint::at("orphans-before-removal");
                record::remove_file(&path)?;
            }
            count += 1;
        }
    }
    Ok(count)
}

/// Takes away those of these layers that no image and no lease names.
pub(crate) fn give_back(layout: &Layout, layers: &[Digest]) -> Result<(), StoreError> {
    {
        let _alone = layout.lock(true)?;
        let wanted = Wanted::collect(layout, &record::all(layout, "images")?, &record::all::<Lease>(layout, "leases")?);
        for path in layers.iter().map(|layer| layout.layer(layer)).filter(|path| !wanted.contains(path)) {
            layer::to_trash(layout, &path)?;
        }
    }
    empty_trash(layout)
}

/// Whether a lease keeps an image's name.
pub(crate) fn holds(lease: &Lease, image: &ImageRecord) -> bool {
    lease.reference == image.reference && lease.manifest == image.manifest
}

/// Deletes what lies in the trash. Two processes may do so at once.
pub(crate) fn empty_trash(layout: &Layout) -> Result<(), StoreError> {
    let trash = layout.directory("trash");
    // A link would lead to what was never ours to delete.
    drop(open_directory(&trash)?);
    for path in commit::entries(&trash)? {
        failpoint::at("trash-before-deletion");
        let removed = match std::fs::remove_dir_all(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => std::fs::remove_file(&path),
            result => result,
        };
        match removed {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(StoreError::io("deleting", path)(error));
            }
            _ => {}
        }
    }
    Ok(())
}
