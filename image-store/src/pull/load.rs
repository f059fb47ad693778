//! From an archive on disk to directories that can be mounted.
//!
//! The same unpacker, the same limits and the same checks as for a pull. What an archive says about itself proves nothing: a layer
//! that is here already is used only if the archive really holds its bytes, and the image is recorded as loaded, which no pull
//! and no other task ever takes for what a registry means by that name.

use std::{
    future::{self, Future},
    os::fd::OwnedFd,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    time::Duration,
};

use tokio::{sync::Semaphore, task::JoinSet};

use super::{Image, Pin, blocking, fetch, interrupted, unless};
use crate::{
    archive::{self, Found, FoundLayer, GivenUp, Source},
    digest::Hasher,
    error::{PullError, StoreError},
    lease::LeaseOwner,
    reference::Reference,
    store::{self, ImageRecord, Inner, LayerRecord, Lease, Outstanding, Stack, Store, Work},
};

/// One wish for an image from an archive.
#[derive(Debug)]
pub struct LoadRequest {
    /// The archive, open for reading, or a directory with what would be in it.
    pub source: OwnedFd,
    /// How error texts call it.
    pub name: String,
    /// Which of its images.
    pub reference: Reference,
    /// Ceiling for the whole load.
    pub timeout: Option<Duration>,
}

impl Store {
    /// Makes an image of an archive ready and leases it, as [`Store::acquire`] does for a registry's. Reads what `docker save`
    /// writes and OCI layouts, plain or compressed.
    pub async fn load(&self, request: LoadRequest, owner: impl Into<LeaseOwner>) -> Result<Image, PullError> {
        self.load_unless(request, owner, future::pending()).await
    }

    /// The same until `given_up` is ready, as [`Store::acquire_unless`].
    pub async fn load_unless(
        &self,
        request: LoadRequest,
        owner: impl Into<LeaseOwner>,
        given_up: impl Future<Output = ()>,
    ) -> Result<Image, PullError> {
        let (reference, limit, owner) = (request.reference.clone(), request.timeout, owner.into());
        unless(given_up, (&reference, limit), |work| load(&self.inner, request, owner, work)).await
    }
}

/// Tells threads that read the archive that nobody waits for them any more.
struct GiveUp(GivenUp);

impl Drop for GiveUp {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

async fn load(inner: &Arc<Inner>, request: LoadRequest, owner: LeaseOwner, whole: Work) -> Result<Image, PullError> {
    let reference = request.reference.clone();
    let guard = GiveUp(GivenUp::default());
    let (keeper, given_up) = (Arc::clone(inner), Arc::clone(&guard.0));
    let (source, found) = working(move || open(&keeper, request, given_up)).await?;
    let lease = Lease {
        owner,
        reference: reference.clone(),
        manifest: found.id.clone(),
        layers: unique(&found.layers).into_iter().map(|layer| layer.diff_id).collect(),
        fixups: Vec::new(),
        ready: false,
    };
    let pin = Pin::with_room(inner, &lease, &whole).await?;
    let source = Arc::new(source);
    let work = || make_ready(inner, &source, &found, (lease.clone(), pin.given_up()), &whole);
    let ready = match work().await {
        Err(error) if inner.makes_room(&error).await => work().await,
        ready => ready,
    };
    let Stack { layers, copy_only } = pin.end(ready, &unproven(&found.layers)).await?;
    Ok(Image { reference, digest: found.id.to_string(), layers, copy_only, config: found.run })
}

fn open(inner: &Inner, request: LoadRequest, given_up: GivenUp) -> Result<(Source, Found), PullError> {
    let LoadRequest { source, name, reference, .. } = request;
    let source = Source::open(name, source, &inner.limits, inner.staging()?.path(), given_up)?;
    let found = archive::choose(&source, &reference, &inner.platform, &inner.limits)?;
    Ok((source, found))
}

/// Like [`blocking`], for work that judges images.
async fn working<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PullError> + Send + 'static,
) -> Result<T, PullError> {
    blocking(move || Ok(work())).await?
}

/// The layers as they are known before the archive's bytes were read.
fn unproven(layers: &[FoundLayer]) -> Vec<LayerRecord> {
    let record =
        |layer: &FoundLayer| LayerRecord { blob: layer.diff_id.clone(), size: 0, diff_id: layer.diff_id.clone() };
    layers.iter().map(record).collect()
}

/// The topmost one of equal layers, as overlay wants it.
fn unique(layers: &[FoundLayer]) -> Vec<FoundLayer> {
    let mut seen = std::collections::HashSet::new();
    let mut kept: Vec<_> = layers.iter().rev().filter(|layer| seen.insert(&layer.diff_id)).cloned().collect();
    kept.reverse();
    kept
}

async fn make_ready(
    inner: &Arc<Inner>,
    source: &Arc<Source>,
    found: &Found,
    (mut lease, given_up): (Lease, Arc<Mutex<bool>>),
    whole: &Work,
) -> Result<Stack, PullError> {
    let layers = load_layers(inner, source, unique(&found.layers), whole).await?;
    let record = ImageRecord {
        reference: lease.reference.clone(),
        resolved: found.id.clone(),
        manifest: found.id.clone(),
        config: found.config.clone(),
        layers,
        pulled_at: store::now(),
        loaded: true,
        access: store::Access::Anyone,
    };
    let keeper = Arc::clone(inner);
    let stack = blocking(move || {
        failpoint::at("load-before-save");
        keeper.save_loaded(&record)?;
        let given_up = given_up.lock().unwrap_or_else(PoisonError::into_inner);
        if *given_up { Err(interrupted()) } else { keeper.mountable(&mut lease) }
    })
    .await?;
    inner.sync_soon();
    Ok(stack)
}

/// Makes layers ready, a few at once. Returns them in the order they came in.
async fn load_layers(
    inner: &Arc<Inner>,
    source: &Arc<Source>,
    layers: Vec<FoundLayer>,
    whole: &Work,
) -> Result<Vec<LayerRecord>, PullError> {
    let slots = Arc::new(Semaphore::new(inner.limits.parallel_per_pull.max(1)));
    let mut tasks = JoinSet::new();
    let outstanding = Outstanding::within(whole);
    for (at, layer) in layers.into_iter().enumerate() {
        let (inner, source, slots) = (Arc::clone(inner), Arc::clone(source), Arc::clone(&slots));
        let work = outstanding.work();
        tasks.spawn(async move {
            let _slot = slots.acquire().await;
            Ok::<_, PullError>((at, load_layer(&inner, &source, layer, work).await?))
        });
    }
    let mut done = fetch::finish(tasks, outstanding).await?;
    done.sort_by_key(|(at, _)| *at);
    Ok(done.into_iter().map(|(_, layer)| layer).collect())
}

async fn load_layer(
    inner: &Arc<Inner>,
    source: &Arc<Source>,
    layer: FoundLayer,
    work: Work,
) -> Result<LayerRecord, PullError> {
    let _turn = inner.layer_turn(&layer.diff_id).await?;
    let (keeper, archive, wanted) = (Arc::clone(inner), Arc::clone(source), layer.clone());
    if let Some(ready) = working(move || already_here(&keeper, &archive, &wanted)).await? {
        return Ok(ready);
    }
    let (keeper, archive, wanted) = (Arc::clone(inner), Arc::clone(source), layer.clone());
    let (part, staged) = working(move || {
        let part = member(&archive, &wanted)?;
        // The archive's layers may be compressed, so this is only the least that they need.
        keeper.check_space(part.size())?;
        Ok((part, keeper.staging()?.layer_for(&work)?))
    })
    .await?;
    let mut record = LayerRecord {
        blob: layer.blob.clone().unwrap_or_else(|| layer.diff_id.clone()),
        size: part.size(),
        diff_id: layer.diff_id.clone(),
    };
    let _download = inner.downloads.acquire().await;
    let (staged, unpacked) = fetch::unpack_part(inner, &record, staged, part).await?;
    if layer.blob.is_none() {
        record.blob = unpacked.blob.clone();
    }
    fetch::commit(inner, &record, staged, unpacked).await?;
    Ok(record)
}

fn member(source: &Source, layer: &FoundLayer) -> Result<archive::Part, PullError> {
    let missing = || source.malformed(format!("layer {:?} is missing", layer.member));
    source.member(&layer.member)?.ok_or_else(missing)
}

/// The layer if the store has it and the archive holds bytes that are known to unpack to it.
fn already_here(inner: &Inner, source: &Source, layer: &FoundLayer) -> Result<Option<LayerRecord>, PullError> {
    if !inner.has_layer(&layer.diff_id)? {
        return Ok(None);
    }
    let mut part = member(source, layer)?;
    let size = part.size();
    let algorithm = layer.blob.as_ref().unwrap_or(&layer.diff_id).algorithm();
    let mut hasher = Hasher::new(algorithm);
    let mut block = vec![0; 256 << 10];
    loop {
        let read = std::io::Read::read(&mut part, &mut block);
        match read.map_err(StoreError::io("reading", source.name()))? {
            0 => break,
            length => hasher.update(&block[..length]),
        }
    }
    let record = LayerRecord { blob: hasher.finish(), size, diff_id: layer.diff_id.clone() };
    let honest = layer.blob.as_ref().is_none_or(|blob| *blob == record.blob);
    // A dishonest one is unpacked, which tells what is wrong with it.
    Ok(if honest && inner.ready(&record)? { Some(record) } else { None })
}
