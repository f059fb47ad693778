//! Layers that are not here: the network on this task, unpacking on a thread of its own, the commit when both digests are right.

use std::{path::Path, sync::Arc};

use layer::{
    UnpackError, Unpacked,
    buffers::Buffers,
    stream::{BlobReader, Piece},
};
use tokio::{
    sync::{Semaphore, mpsc, oneshot},
    task::JoinSet,
};

use super::{blocking, interrupted};
use crate::{
    archive::Part,
    config::PullRequest,
    digest::Digest,
    error::{PullError, StoreError},
    manifest::Descriptor,
    progress::{Meter, Progress, PullEvent},
    registry::{Session, Sink},
    store::{ImageRecord, Inner, LayerRecord, Outstanding, Staged, Work},
};

/// Layers of at least this compressed size inflate and write on two threads.
const SIDE_BY_SIDE: u64 = 16 << 20;
/// Chunks that may wait between the network and the unpacker.
const WAITING_PIECES: usize = 8;

/// Fetches the layers that are not here. `None`: nothing was missing; otherwise the bytes that arrived.
pub(super) async fn fetch_missing(
    inner: &Arc<Inner>,
    request: &PullRequest,
    record: &ImageRecord,
    layers: &[LayerRecord],
    progress: Arc<dyn Progress>,
    whole: &Work,
) -> Result<Option<u64>, PullError> {
    let (keeper, wanted) = (Arc::clone(inner), layers.to_vec());
    let mut missing = blocking(move || {
        let mut missing = Vec::new();
        for layer in wanted {
            if !keeper.ready(&layer)? {
                missing.push(layer);
            }
        }
        Ok(missing)
    })
    .await?;
    let bytes_total = missing.iter().fold(0u64, |sum, layer| sum.saturating_add(layer.size));
    let digest = record.manifest.clone();
    progress.report(PullEvent::Resolved { digest, bytes_total, layers: missing.len() });
    if missing.is_empty() {
        return Ok(None);
    }
    inner.check_space(bytes_total)?;
    // The largest first, so that none of them is left over at the end.
    missing.sort_by_key(|layer| std::cmp::Reverse(layer.size));
    let sessions: Arc<[Session]> = inner.endpoints.sessions(request, &inner.limits)?.into();
    let meter = Arc::new(Meter::new(progress, bytes_total, missing.len()));
    let slots = Arc::new(Semaphore::new(inner.limits.parallel_per_pull.max(1)));
    let mut tasks = JoinSet::new();
    let outstanding = Outstanding::within(whole);
    for layer in missing {
        let (inner, sessions) = (Arc::clone(inner), Arc::clone(&sessions));
        let (meter, slots, work) = (Arc::clone(&meter), Arc::clone(&slots), outstanding.work());
        tasks.spawn(async move {
            let _slot = slots.acquire().await;
            fetch_layer(&inner, &sessions, &layer, &meter, work).await?;
            meter.layer_done();
            Ok::<(), PullError>(())
        });
    }
    finish(tasks, outstanding).await?;
    inner.sync_soon();
    Ok(Some(meter.bytes_done()))
}

/// Waits for the layers of a pull. The first failure ends all of them, and what they have staged is gone when it is told: a full
/// disk has its room back.
pub(super) async fn finish<T: 'static>(
    mut tasks: JoinSet<Result<T, PullError>>,
    outstanding: Outstanding,
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
            // Only a runtime that shuts down cancels them while we wait.
            Err(_) => interrupted().into(),
        };
        tasks.shutdown().await;
        outstanding.settled().await;
        return Err(failure);
    }
    Ok(done)
}

/// Makes one layer ready, unless somebody else does so meanwhile.
async fn fetch_layer(
    inner: &Arc<Inner>,
    sessions: &[Session],
    layer: &LayerRecord,
    meter: &Meter,
    work: Work,
) -> Result<(), PullError> {
    let _turn = inner.layer_turn(&layer.diff_id).await?;
    let (keeper, wanted) = (Arc::clone(inner), layer.clone());
    let staged = blocking(move || match keeper.ready(&wanted)? {
        true => Ok(None),
        false => keeper.staging()?.layer_for(&work).map(Some),
    })
    .await?;
    let Some(staged) = staged else {
        meter.add_bytes(layer.size);
        return Ok(());
    };
    let _download = inner.downloads.acquire().await;
    let (staged, unpacked) = stream_layer(inner, sessions, layer, staged, meter).await?;
    failpoint::at("fetch-before-commit");
    commit(inner, layer, staged, unpacked).await
}

/// Gives a layer its place, if it is what the image says it is.
pub(super) async fn commit(
    inner: &Arc<Inner>,
    layer: &LayerRecord,
    staged: Staged,
    unpacked: Unpacked,
) -> Result<(), PullError> {
    if let Err(error) = verify(layer, &unpacked) {
        // Many files may have to go: not on this thread.
        blocking(move || {
            drop(staged);
            Ok(())
        })
        .await?;
        return Err(error);
    }
    let keeper = Arc::clone(inner);
    Ok(blocking(move || keeper.commit_layer(&staged, &unpacked)).await?)
}

type ThreadResult = Result<(Unpacked, Staged), UnpackError>;

/// Network on this task, unpacking on a thread of its own, a bounded channel between them.
async fn stream_layer(
    inner: &Arc<Inner>,
    sessions: &[Session],
    layer: &LayerRecord,
    staged: Staged,
    meter: &Meter,
) -> Result<(Staged, Unpacked), PullError> {
    let (pieces, receiver) = mpsc::channel(WAITING_PIECES);
    let fs = staged.fs();
    let done = spawn_unpacker(inner, layer, staged, receiver)?;
    let streamed = stream(sessions, layer, &pieces, meter).await;
    if streamed.is_ok() {
        failpoint::at("fetch-before-end");
        // If nobody reads any more, the thread's own result says why.
        pieces.send(Piece::End).await.ok();
    }
    drop(pieces);
    settle(layer, &fs, done, streamed).await
}

/// Unpacks a layer that is on disk already.
pub(super) async fn unpack_part(
    inner: &Arc<Inner>,
    layer: &LayerRecord,
    staged: Staged,
    part: Part,
) -> Result<(Staged, Unpacked), PullError> {
    let (pieces, receiver) = mpsc::channel(WAITING_PIECES);
    let fs = staged.fs();
    let done = spawn_unpacker(inner, layer, staged, receiver)?;
    let streamed = blocking(move || Ok(part.send(&pieces))).await?.map_err(|error| PullError::Layer {
        layer: layer.blob.clone(),
        problem: format!("reading it from the archive: {error}"),
    });
    settle(layer, &fs, done, streamed).await
}

/// Joins what the two ends of a layer's way say.
async fn settle(
    layer: &LayerRecord,
    fs: &Path,
    done: oneshot::Receiver<ThreadResult>,
    streamed: Result<(), PullError>,
) -> Result<(Staged, Unpacked), PullError> {
    let result = done
        .await
        .map_err(|_| PullError::Layer { layer: layer.blob.clone(), problem: "the unpacking thread died".into() })?;
    match (result, streamed) {
        (Ok((unpacked, staged)), Ok(())) => Ok((staged, unpacked)),
        // The unpacker stopped because the stream did, or the stream because the unpacker did: the cause is the other one's.
        (Err(UnpackError::Aborted) | Ok(_), Err(error)) => Err(error),
        (Err(UnpackError::Aborted), Ok(())) => {
            Err(PullError::Layer { layer: layer.blob.clone(), problem: "its stream was cut short".into() })
        }
        (Err(error), _) => Err(unpack_error(layer, fs, error)),
    }
}

fn spawn_unpacker(
    inner: &Arc<Inner>,
    layer: &LayerRecord,
    staged: Staged,
    pieces: mpsc::Receiver<Piece>,
) -> Result<oneshot::Receiver<ThreadResult>, StoreError> {
    let fs = staged.fs();
    let output = staged.output(inner.layout.layers, &inner.memory)?;
    let blob = BlobReader::new(pieces, layer.blob.algorithm());
    let (algorithm, side_by_side) = (layer.diff_id.algorithm(), layer.size >= SIDE_BY_SIDE);
    let limits = inner.limits.of_a_layer();
    let (report, done) = oneshot::channel();
    std::thread::Builder::new()
        .name("unpack".into())
        .spawn(move || {
            // Whatever fails, and also when nobody waits any more, `staged` removes itself here.
            let result = layer::unpack(blob, output, algorithm, side_by_side, &limits);
            drop(report.send(result.map(|unpacked| (unpacked, staged))));
        })
        .map_err(StoreError::io("starting a thread for", fs))?;
    Ok(done)
}

/// Streams a blob from whoever has it, going on where the one before failed.
async fn stream(
    sessions: &[Session],
    layer: &LayerRecord,
    pieces: &mpsc::Sender<Piece>,
    meter: &Meter,
) -> Result<(), PullError> {
    let descriptor =
        Descriptor { media_type: String::new(), digest: layer.blob.clone(), size: layer.size, platform: None };
    let sink = Sink { pieces, meter, buffers: Buffers::default() };
    let mut offset = 0;
    let mut result = Ok(());
    for session in sessions {
        result = session.stream_blob(&descriptor, &mut offset, &sink).await;
        match &result {
            Ok(()) => break,
            Err(_) if pieces.is_closed() => break,
            Err(error) => tracing::debug!(host = session.host.name(), %error, "this host does not deliver the blob"),
        }
    }
    result
}

/// The layer is what the image says it is, before anybody can see it.
fn verify(layer: &LayerRecord, unpacked: &Unpacked) -> Result<(), PullError> {
    let check = |what: &str, expected: &Digest, actual: &Digest| {
        if expected == actual {
            return Ok(());
        }
        let what = format!("layer {}: {what}", layer.blob);
        Err(PullError::DigestMismatch { what, expected: expected.clone(), actual: actual.clone() })
    };
    check("the blob", &layer.blob, &unpacked.blob)?;
    check("its unpacked bytes (diff id)", &layer.diff_id, &unpacked.diff_id)
}

fn unpack_error(layer: &LayerRecord, fs: &Path, error: UnpackError) -> PullError {
    match error {
        UnpackError::Refused { entry, problem } => {
            let problem = match entry {
                Some(entry) => format!("entry \"{entry}\": {problem}"),
                None => problem,
            };
            PullError::Layer { layer: layer.blob.clone(), problem }
        }
        UnpackError::Disk { entry, action, source } => {
            StoreError::io(action, fs.join(entry.trim_start_matches('/')))(source).into()
        }
        UnpackError::Aborted => {
            PullError::Layer { layer: layer.blob.clone(), problem: "unpacking was given up".into() }
        }
    }
}
