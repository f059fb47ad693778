//! A pull from beginning to end.

use std::{sync::Arc, time::Instant};

use super::{
    download::{Fetched, fetch_missing, without_duplicates},
    lease_guard::{LeaseGuard, Restored},
    partial::LayerGroup,
    puller::Puller,
    request::{Image, PullRequest},
    resolve::{report_refusal, resolve, resolve_original},
    resolved::{ResolutionSource, Resolved},
};
use crate::{
    blocking::blocking,
    error::PullError,
    lease::LeaseOwner,
    progress::{Progress, PullEvent},
    store::{Access, ImageRecord, Lease, MountSources, RecordSource},
    tracker::TaskToken,
};

/// Makes an image ready and leases it.
pub(crate) async fn acquire(
    puller: &Arc<Puller>,
    request: &PullRequest,
    owner: LeaseOwner,
    progress: Arc<dyn Progress>,
    token: TaskToken,
) -> Result<Image, PullError> {
    let started = Instant::now();
    let reference = request.reference.clone();
    let mut request = request.clone();
    progress.report(PullEvent::Started { reference: reference.clone() });
    let (resolved, source) = resolve(puller, &mut request, started, &progress).await?;
    let pull = Pull { puller, request: &request, owner, progress: &progress, token: &token };
    let (resolved, Ready { fetched, sources, group }) = match pull.prepare(&resolved, source).await {
        Err(refusal) if refusal.refuses_content() && resolved.record.has_an_original() => {
            let original = match resolve_original(puller, &request, &resolved, &progress).await {
                Err(error) if error.recoverable() => return Err(error),
                original => original.map_err(|_| refusal.clone())?,
            };
            report_refusal(&progress, &reference, &refusal);
            let prepared = pull.prepare(&original, ResolutionSource::Registry).await?;
            (original, prepared)
        }
        prepared => (resolved, prepared?),
    };
    progress.report(PullEvent::Done {
        digest: resolved.record.manifest.clone(),
        bytes: fetched.unwrap_or(0),
        elapsed: started.elapsed(),
        cached: fetched.is_none() && group.is_none(),
    });
    let (MountSources { layers, copy_only }, digest) = (sources, resolved.record.manifest.to_string());
    Ok(Image { reference, digest, layers, copy_only, group, config: resolved.run.clone() })
}

/// An image that can be mounted.
struct Ready {
    /// The received bytes, if a layer was fetched.
    fetched: Option<u64>,
    sources: MountSources,
    /// The descriptor for the users of layers that are not complete.
    group: Option<LayerGroup>,
}

/// What the steps of a pull share.
struct Pull<'a> {
    puller: &'a Arc<Puller>,
    request: &'a PullRequest,
    owner: LeaseOwner,
    progress: &'a Arc<dyn Progress>,
    token: &'a TaskToken,
}

impl Pull<'_> {
    /// Leases a resolved image and makes it ready. After a failure the lease is as before.
    async fn prepare(&self, resolved: &Arc<Resolved>, source: ResolutionSource) -> Result<Ready, PullError> {
        let Self { puller, request, owner, progress, token } = self;
        let (resolved, source) = match request.pin {
            true => pinned(resolved, source),
            false => (Arc::clone(resolved), source),
        };
        let record = &resolved.record;
        let layers = without_duplicates(&record.layers, |layer| &layer.diff_id);
        let diff_ids = layers.iter().map(|layer| layer.diff_id.clone()).collect();
        let lease = Lease::unfinished(owner.clone(), record.reference.clone(), record.manifest.clone(), diff_ids);
        let guard = LeaseGuard::begin(puller, &lease, token).await?;
        let work = || {
            let lease = (lease.clone(), guard.restored());
            make_ready(puller, request, (&resolved, source), lease, Arc::clone(progress), token)
        };
        let ready = match work().await {
            Err(error) if !request.background && puller.reclaim_space(&error).await => work().await,
            ready => ready,
        };
        guard.end(puller, ready, &layers).await
    }
}

/// The record of a name that the node's administrator pins.
fn pinned(resolved: &Resolved, source: ResolutionSource) -> (Arc<Resolved>, ResolutionSource) {
    let record = ImageRecord { pinned: true, access: Access::Anyone, ..resolved.record.clone() };
    let source = if source == ResolutionSource::Record { ResolutionSource::NewRecord } else { source };
    (Arc::new(Resolved { record, ..resolved.clone() }), source)
}

/// Fetches or serves the missing layers, records the image and completes its lease.
async fn make_ready(
    puller: &Arc<Puller>,
    request: &PullRequest,
    (resolved, source): (&Arc<Resolved>, ResolutionSource),
    (mut lease, restored): (Lease, Restored),
    progress: Arc<dyn Progress>,
    token: &TaskToken,
) -> Result<Ready, PullError> {
    let Fetched { bytes: fetched, partials, group } =
        fetch_missing(puller, request, &resolved.record, progress, token).await?;
    let was_complete = fetched.is_none() && partials.is_empty();
    let (local, resolved) = (Arc::clone(&puller.local), Arc::clone(resolved));
    let sources = blocking(move || {
        failpoint::at("pull-before-save");
        if source != ResolutionSource::Record || !was_complete {
            let Resolved { record, manifest, config, .. } = &*resolved;
            let asked = source == ResolutionSource::Registry;
            let source = if asked { RecordSource::Registry } else { RecordSource::Record };
            local.save(record, manifest, config, source)?;
        }
        restored.complete(&local, &mut lease, &partials)
    })
    .await?;
    Ok(Ready { fetched, sources, group })
}
