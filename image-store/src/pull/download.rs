//! The download of missing layers: the network on async tasks, each layer unpacked on its own thread.

use std::{collections::HashSet, sync::Arc};

use layer::{Digest, Unpacked, stream::Piece};
use lazy::StartWaits;
use tokio::{sync::Semaphore, task::JoinSet};

use super::{
    join::Joined,
    lead::{Lead, lead, passing_on},
    partial::{Begun, LayerGroup},
    puller::Puller,
    request::PullRequest,
    unpack::{self, Unpacker},
};
use crate::{
    blocking::{blocking, interrupted},
    error::PullError,
    progress::{LayerMeter, Meter, Progress, PullEvent},
    registry::{Session, stream_blob},
    store::{ImageRecord, LayerRecord, Partials, Staged},
    tracker::{TaskToken, TaskTracker},
};

/// What the missing layers of an image became.
pub(super) struct Fetched {
    /// The number of received bytes; `None`: no layer was fetched.
    pub(super) bytes: Option<u64>,
    /// The layers that are mounted before they are complete.
    pub(super) partials: Partials,
    /// The descriptor that their users must hold.
    pub(super) group: Option<LayerGroup>,
}

/// The layers of an image that are served.
#[derive(Default)]
struct Served {
    partials: Partials,
    group: Option<LayerGroup>,
    /// Those that must be pulled whole.
    refused: Vec<LayerRecord>,
    /// Keeps the background from taking a share of the link.
    waits: Vec<StartWaits>,
}

/// Fetches the missing layers of an image, or begins to serve them.
pub(super) async fn fetch_missing(
    puller: &Arc<Puller>,
    request: &PullRequest,
    record: &ImageRecord,
    progress: Arc<dyn Progress>,
    token: &TaskToken,
) -> Result<Fetched, PullError> {
    let missing = missing_layers(puller, record).await?;
    let may_serve = |layer: &LayerRecord| request.lazy && puller.partial.may_serve(layer);
    let (wanted, whole): (Vec<_>, Vec<_>) = missing.into_iter().partition(may_serve);
    // The start waits for both. After a failure of one, what the other one staged is removed before this returns.
    let (served, bytes) = tokio::join!(
        serve_layers(puller, request, wanted, &progress, token),
        fetch_whole(puller, request, (record, whole), Arc::clone(&progress), token)
    );
    let (Served { partials, group, refused, waits }, mut bytes) = (served?, bytes?);
    // What a container reads first of the served layers comes at the same time.
    if !refused.is_empty() {
        let more = fetch_whole(puller, request, (record, refused), progress, token).await?;
        bytes = bytes.into_iter().chain(more).reduce(u64::saturating_add);
    }
    puller.await_first(partials.values()).await?;
    drop(waits);
    Ok(Fetched { bytes, partials, group })
}

/// Fetches layers. Returns the number of received bytes; `None`: there were none to fetch.
async fn fetch_whole(
    puller: &Arc<Puller>,
    request: &PullRequest,
    (record, mut missing): (&ImageRecord, Vec<LayerRecord>),
    progress: Arc<dyn Progress>,
    token: &TaskToken,
) -> Result<Option<u64>, PullError> {
    let bytes_total = total(&missing);
    let digest = record.manifest.clone();
    progress.report(PullEvent::Resolved { digest, bytes_total, layers: missing.len() });
    if missing.is_empty() {
        return Ok(None);
    }
    puller.check_space(bytes_total)?;
    let background = request.background;
    let _urgent = (!background).then(|| puller.priority.urgent());
    // The largest first, so that none of them is left over at the end.
    missing.sort_by_key(|layer| std::cmp::Reverse(layer.size));
    let sessions: Arc<[Session]> = puller.endpoints.sessions(request.caller(), &puller.limits, &progress)?.into();
    let meter = Arc::new(Meter::new(progress, bytes_total, missing.len()));
    let slots = Arc::new(Semaphore::new(puller.limits.parallel_per_pull.max(1)));
    let mut tasks = JoinSet::new();
    let tracker = TaskTracker::within(token);
    let (leader, followers) = lead();
    let mut leader = Some(leader);
    for layer in missing {
        let (puller, sessions) = (Arc::clone(puller), Arc::clone(&sessions));
        let (meter, slots, token) = (Arc::clone(&meter), Arc::clone(&slots), tracker.token());
        let (leader, followers) = (leader.take(), followers.clone());
        tasks.spawn(async move {
            if leader.is_none() {
                followers.begin().await;
            }
            let _slot = slots.acquire().await;
            let meter = LayerMeter::new(meter, layer.diff_id.clone(), layer.size);
            fetch_layer(&puller, (&sessions, background, leader), &layer, &meter, token).await?;
            meter.done();
            Ok::<(), PullError>(())
        });
    }
    join_all(tasks, tracker).await?;
    puller.local.sync_soon();
    Ok(Some(meter.bytes_done()))
}

/// Compressed bytes of layers.
fn total(layers: &[LayerRecord]) -> u64 {
    // A manifest claims these sizes, so the sum may overflow.
    layers.iter().fold(0, |sum, layer| sum.saturating_add(layer.size))
}

/// Begins to serve layers that may be mounted before they are complete, all at the same time.
async fn serve_layers(
    puller: &Arc<Puller>,
    request: &PullRequest,
    wanted: Vec<LayerRecord>,
    progress: &Arc<dyn Progress>,
    token: &TaskToken,
) -> Result<Served, PullError> {
    let mut served = Served::default();
    if wanted.is_empty() {
        return Ok(served);
    }
    puller.check_space(total(&wanted))?;
    let mut tasks = JoinSet::new();
    let tracker = TaskTracker::within(token);
    for layer in wanted {
        let (puller, token) = (Arc::clone(puller), tracker.token());
        let (image, credentials) = (request.reference.clone(), request.credentials.clone());
        tasks.spawn(async move {
            let _lock = puller.local.lock_layer(&layer.diff_id).await?;
            let (local, wanted) = (Arc::clone(&puller.local), layer.clone());
            if blocking(move || local.has_layer_for_blob(&wanted)).await? {
                return Ok((layer, Begun::PullWhole, None));
            }
            let waits = puller.start_waits().await?;
            let begun = puller.serve_layer((&image, credentials.as_ref()), &layer, &token).await?;
            Ok::<_, PullError>((layer, begun, waits))
        });
    }
    let (mut layers, mut bytes) = (0, 0u64);
    for (layer, begun, waits) in join_all(tasks, tracker).await? {
        served.waits.extend(waits);
        match begun {
            Begun::PullWhole => served.refused.push(layer),
            Begun::Served(partial, group) => {
                (layers, bytes) = (layers + 1, bytes.saturating_add(layer.size));
                served.partials.insert(layer.diff_id, *partial);
                served.group = Some(group);
            }
        }
    }
    if layers > 0 {
        progress.report(PullEvent::Incomplete { layers, bytes });
    }
    Ok(served)
}

/// The layers of an image that are not on disk.
async fn missing_layers(puller: &Arc<Puller>, record: &ImageRecord) -> Result<Vec<LayerRecord>, PullError> {
    let (local, layers) = (Arc::clone(&puller.local), without_duplicates(&record.layers, |layer| &layer.diff_id));
    let missing = blocking(move || {
        let mut missing = Vec::new();
        for layer in layers {
            if !local.has_layer_for_blob(&layer)? {
                missing.push(layer);
            }
        }
        Ok(missing)
    });
    Ok(missing.await?)
}

/// Waits for the layers of a pull. The first failure ends all of them. Before the failure is returned, everything that
/// they staged is removed, so that a full disk has its space back.
pub(crate) async fn join_all<T: 'static>(
    mut tasks: JoinSet<Result<T, PullError>>,
    tracker: TaskTracker,
) -> Result<Vec<T>, PullError> {
    let mut done = Vec::with_capacity(tasks.len());
    while let Some(result) = tasks.join_next().await {
        let failure = match result {
            Ok(Ok(value)) => {
                done.push(value);
                continue;
            }
            Ok(Err(failure)) => failure,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // Only a runtime that shuts down cancels the tasks during the wait.
            Err(_) => interrupted().into(),
        };
        tasks.shutdown().await;
        tracker.wait().await;
        return Err(failure);
    }
    Ok(done)
}

/// Makes one layer ready, unless another task or process, or the service of partial layers, makes it meanwhile.
async fn fetch_layer(
    puller: &Arc<Puller>,
    (sessions, background, mut leader): (&[Session], bool, Option<Lead>),
    layer: &LayerRecord,
    meter: &LayerMeter,
    token: TaskToken,
) -> Result<(), PullError> {
    meter.waits_for_another_pull();
    let mut joined = passing_on(&mut leader, puller.join_service(layer, meter)).await?;
    let _turn = if background { passing_on(&mut leader, puller.priority.background()).await } else { None };
    let _lock = loop {
        if joined == Joined::Complete {
            return Ok(());
        }
        let lock = match puller.local.try_lock_layer(&layer.diff_id).await? {
            Some(lock) => lock,
            None => passing_on(&mut leader, puller.local.lock_layer(&layer.diff_id)).await?,
        };
        // The service may have begun meanwhile. Its failure is no reason to ask it again.
        if joined == Joined::GaveUp || !puller.serves(layer) {
            break lock;
        }
        drop(lock);
        joined = passing_on(&mut leader, puller.join_service(layer, meter)).await?;
    };
    let (local, wanted) = (Arc::clone(&puller.local), layer.clone());
    let staged = blocking(move || match local.has_layer_for_blob(&wanted)? {
        true => Ok(None),
        false => local.staging()?.tracked_layer(&token).map(Some),
    })
    .await?;
    let Some(staged) = staged else {
        meter.add_bytes(layer.size);
        return Ok(());
    };
    let _download = if background { None } else { Some(passing_on(&mut leader, puller.downloads.acquire()).await) };
    let (staged, unpacked) = stream_layer(puller, (sessions, leader), layer, staged, meter).await?;
    failpoint::at("fetch-before-commit");
    unpack::commit(puller, layer, staged, unpacked).await
}

/// Streams a blob through a bounded channel into an unpacking thread.
async fn stream_layer(
    puller: &Puller,
    (sessions, mut leader): (&[Session], Option<Lead>),
    layer: &LayerRecord,
    staged: Staged,
    meter: &LayerMeter,
) -> Result<(Staged, Unpacked), PullError> {
    let (pieces, unpacker) = Unpacker::spawn(puller, layer, staged)?.split();
    // The request is sent before the first wait.
    let streamed = passing_on(&mut leader, stream_blob(sessions, (&layer.blob, layer.size), &pieces, meter)).await;
    if streamed.is_ok() {
        failpoint::at("fetch-before-end");
        // If the unpacker stopped reading, its own result tells why.
        pieces.send(Piece::End).await.ok();
    }
    drop(pieces);
    unpacker.join(streamed).await
}

/// Removes all but the topmost of equal layers (bottom first). Overlay refuses the same directory twice, and only the
/// topmost one has an effect.
pub(super) fn without_duplicates<T: Clone>(layers: &[T], diff_id: impl Fn(&T) -> &Digest) -> Vec<T> {
    let mut seen = HashSet::new();
    let mut kept: Vec<_> = layers.iter().rev().filter(|layer| seen.insert(diff_id(layer))).cloned().collect();
    kept.reverse();
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(blob: &str, diff_id: &str) -> LayerRecord {
        let [blob, diff_id] = [blob, diff_id].map(|name| Digest::sha256(name.as_bytes()));
        LayerRecord { blob, size: 1, diff_id, native: None }
    }

    #[test]
    fn the_topmost_of_equal_layers_stays() {
        let layers = [layer("1", "a"), layer("2", "b"), layer("3", "a"), layer("4", "c")];
        assert_eq!(without_duplicates(&layers, |layer| &layer.diff_id), layers[1..]);
    }
}
