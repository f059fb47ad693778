//! A load: from an archive on disk to layers that can be mounted.
//!
//! - The unpacker, the limits and the checks are those of a pull.
//! - An archive proves nothing by its own claims: a layer that is on disk already is used only if the archive contains
//!   its bytes.
//! - The image is recorded as loaded. No pull and no other task takes it for the image of that name at a registry. The
//!   administrator of the node can say otherwise by pinning the name.

use std::{io::Read, sync::Arc};

use layer::digest::Hasher;
use tokio::{sync::Semaphore, task::JoinSet};

use super::{
    download::{join_all, without_duplicates},
    lease_guard::{LeaseGuard, Restored},
    puller::Puller,
    request::{Image, LoadRequest},
    unpack::{self, Unpacker},
};
use crate::{
    archive::{self, ArchiveImage, ArchiveLayer, CancelOnDrop, Cancelled, Part, Source},
    blocking::{blocking, blocking_pull},
    error::{PullError, StoreError},
    lease::LeaseOwner,
    platform::Platform,
    store::{self, ImageRecord, LayerRecord, Lease, MountSources, Partials},
    tracker::{TaskToken, TaskTracker},
};

/// Makes an image of an archive ready and leases it.
pub(crate) async fn load(
    puller: &Arc<Puller>,
    request: LoadRequest,
    owner: LeaseOwner,
    token: TaskToken,
) -> Result<Image, PullError> {
    let (reference, pin) = (request.reference.clone(), request.pin);
    let cancel = CancelOnDrop::default();
    let (opener, cancelled) = (Arc::clone(puller), cancel.flag());
    let (source, image) = blocking_pull(move || open(&opener, request, cancelled)).await?;
    let diff_ids = without_duplicates(&image.layers, |layer| &layer.diff_id).into_iter().map(|layer| layer.diff_id);
    let lease = Lease::unfinished(owner, reference.clone(), image.id.clone(), diff_ids.collect());
    let guard = LeaseGuard::begin(puller, &lease, &token).await?;
    let source = Arc::new(source);
    let work = || make_ready(puller, &source, (&image, pin), (lease.clone(), guard.restored()), &token);
    let ready = match work().await {
        Err(error) if puller.reclaim_space(&error).await => work().await,
        ready => ready,
    };
    let MountSources { layers, copy_only } = guard.end(puller, ready, &unverified(&image.layers)).await?;
    let digest = image.id.to_string();
    Ok(Image { reference, digest, layers, copy_only, group: None, config: image.run })
}

fn open(puller: &Puller, request: LoadRequest, cancelled: Cancelled) -> Result<(Source, ArchiveImage), PullError> {
    let LoadRequest { source, name, reference, .. } = request;
    let source = Source::open(name, source, &puller.limits, puller.local.staging()?.path(), cancelled)?;
    // Archives are read as ever: their native images are no choice.
    let image = archive::choose(&source, &reference, &Platform::host(), &puller.limits)?;
    Ok((source, image))
}

/// The layers as they are known before the bytes of the archive are read.
fn unverified(layers: &[ArchiveLayer]) -> Vec<LayerRecord> {
    let record = |layer: &ArchiveLayer| {
        let digest = layer.diff_id.clone();
        LayerRecord { blob: digest.clone(), size: 0, diff_id: digest, native: None }
    };
    layers.iter().map(record).collect()
}

/// Loads the layers, records the image and completes its lease.
async fn make_ready(
    puller: &Arc<Puller>,
    source: &Arc<Source>,
    (image, pin): (&ArchiveImage, bool),
    (mut lease, restored): (Lease, Restored),
    token: &TaskToken,
) -> Result<MountSources, PullError> {
    let layers = without_duplicates(&image.layers, |layer| &layer.diff_id);
    let record = ImageRecord {
        reference: lease.reference.clone(),
        resolved: image.id.clone(),
        manifest: image.id.clone(),
        config: image.config.clone(),
        layers: load_layers(puller, source, layers, token).await?,
        pulled_at: store::now(),
        loaded: true,
        pinned: pin,
        access: store::Access::Anyone,
    };
    let (local, config) = (Arc::clone(&puller.local), image.document.clone());
    let sources = blocking(move || {
        failpoint::at("load-before-save");
        match pin {
            true => local.save_pinned(&record, &config)?,
            false => local.save_loaded(&record)?,
        }
        restored.complete(&local, &mut lease, &Partials::new())
    })
    .await?;
    puller.local.sync_soon();
    Ok(sources)
}

/// Loads layers, some at the same time. Returns them in their order.
async fn load_layers(
    puller: &Arc<Puller>,
    source: &Arc<Source>,
    layers: Vec<ArchiveLayer>,
    token: &TaskToken,
) -> Result<Vec<LayerRecord>, PullError> {
    let slots = Arc::new(Semaphore::new(puller.limits.parallel_per_pull.max(1)));
    let mut tasks = JoinSet::new();
    let tracker = TaskTracker::within(token);
    for (at, layer) in layers.into_iter().enumerate() {
        let (puller, source, slots) = (Arc::clone(puller), Arc::clone(source), Arc::clone(&slots));
        let token = tracker.token();
        tasks.spawn(async move {
            let _slot = slots.acquire().await;
            Ok::<_, PullError>((at, load_layer(&puller, &source, layer, token).await?))
        });
    }
    let mut done = join_all(tasks, tracker).await?;
    done.sort_by_key(|(at, _)| *at);
    Ok(done.into_iter().map(|(_, layer)| layer).collect())
}

/// Loads one layer, unless another task or process makes it meanwhile.
async fn load_layer(
    puller: &Arc<Puller>,
    source: &Arc<Source>,
    layer: ArchiveLayer,
    token: TaskToken,
) -> Result<LayerRecord, PullError> {
    let _lock = puller.local.lock_layer(&layer.diff_id).await?;
    let (other, archive, wanted) = (Arc::clone(puller), Arc::clone(source), layer.clone());
    if let Some(record) = blocking_pull(move || already_on_disk(&other, &archive, &wanted)).await? {
        return Ok(record);
    }
    let (other, archive, wanted) = (Arc::clone(puller), Arc::clone(source), layer.clone());
    let (part, staged) = blocking_pull(move || {
        let part = member(&archive, &wanted)?;
        // The layer may be compressed in the archive, so this is only the least that it needs.
        other.check_space(part.size())?;
        Ok((part, other.local.staging()?.tracked_layer(&token)?))
    })
    .await?;
    let mut record = LayerRecord {
        blob: layer.blob.clone().unwrap_or_else(|| layer.diff_id.clone()),
        size: part.size(),
        diff_id: layer.diff_id.clone(),
        native: None,
    };
    let _download = puller.downloads.acquire().await;
    let (pieces, unpacker) = Unpacker::spawn(puller, &record, staged)?.split();
    let streamed = blocking(move || Ok(part.send(&pieces))).await?.map_err(|error| PullError::Layer {
        layer: record.blob.clone(),
        problem: format!("reading it from the archive: {error}"),
    });
    let (staged, unpacked) = unpacker.join(streamed).await?;
    if layer.blob.is_none() {
        record.blob = unpacked.blob.clone();
    }
    unpack::commit(puller, &record, staged, unpacked).await?;
    Ok(record)
}

fn member(source: &Source, layer: &ArchiveLayer) -> Result<Part, PullError> {
    let missing = || source.malformed(format!("layer {:?} is missing", layer.member));
    source.member(&layer.member)?.ok_or_else(missing)
}

/// The record of a layer that is on disk, if the archive contains a blob that is known to unpack to it.
fn already_on_disk(puller: &Puller, source: &Source, layer: &ArchiveLayer) -> Result<Option<LayerRecord>, PullError> {
    if !puller.local.has_layer(&layer.diff_id)? {
        return Ok(None);
    }
    let mut part = member(source, layer)?;
    let size = part.size();
    let algorithm = layer.blob.as_ref().unwrap_or(&layer.diff_id).algorithm();
    let mut hasher = Hasher::new(algorithm);
    let mut block = vec![0; 256 << 10];
    loop {
        match part.read(&mut block).map_err(StoreError::io("reading", source.name()))? {
            0 => break,
            length => hasher.update(&block[..length]),
        }
    }
    let record = LayerRecord { blob: hasher.finish(), size, diff_id: layer.diff_id.clone(), native: None };
    // A layer with another digest than the archive claims is unpacked, which reports the mismatch.
    let matches = layer.blob.as_ref().is_none_or(|blob| *blob == record.blob);
    Ok(if matches && puller.local.has_layer_for_blob(&record)? { Some(record) } else { None })
}
